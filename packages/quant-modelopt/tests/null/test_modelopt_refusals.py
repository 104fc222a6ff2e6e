"""Damaged and contradictory checkpoints are refused by name, and a name that means another algorithm is no match."""

import ml_dtypes
import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm.interfaces.support import Rejected
from modulm_quant_modelopt.scheme import ModelOpt, ModelOptFP4, ModelOptMixed, ModelOptMXFP8
from modulm_testkit.fakes import MemoryCheckpoint

LAYER, SHAPE = "model.layers.3.mlp.up_proj", (16, 64)
E4M3 = ml_dtypes.float8_e4m3fn


def checkpoint(tensors, **declared):
    named = {f"{LAYER}.{name}": array for name, array in tensors.items()}
    return MemoryCheckpoint({"quantization_config": {"quant_method": "modelopt", **declared}}, named)


def checked(tensors, shape=SHAPE, **declared):
    stored = checkpoint(tensors, **declared)
    scheme = ModelOpt.from_checkpoint(stored)
    said = scheme.rule(stored, LAYER, *shape)
    assert (said is None) == (scheme.weight(stored, LAYER, *shape) is None)
    return said


def number(value=0.5, shape=(), dtype=np.float32):
    return np.full(shape, value, dtype)


EIGHT = {"weight": np.ones(SHAPE, E4M3), "weight_scale": number()}
NV = {
    "weight": np.zeros((16, 32), np.uint8),
    "weight_scale": np.ones((16, 4), E4M3),
    "weight_scale_2": number(),
}
MX = {"weight": np.zeros((16, 32), np.uint8), "weight_scale": np.full((16, 2), 127, np.uint8)}
NAN_BYTE = np.full((16, 2), 255, np.uint8)
REFUSED = {
    "no scale": ("FP8", {"weight": EIGHT["weight"]}, "weight_scale"),
    "a scale for each row": ("FP8", {**EIGHT, "weight_scale": number(shape=(16,))}, r"\[16\]"),
    "one scale for all rows": ("FP8_PER_CHANNEL_PER_TOKEN", EIGHT, r"weight_scale.*\[16\]"),
    "NaN": ("FP8", {**EIGHT, "weight_scale": number(np.nan)}, "NaN"),
    "below zero": ("FP8", {**EIGHT, "weight_scale": number(-1)}, "above 0"),
    "NaN activation scale": ("FP8", {**EIGHT, "input_scale": number(np.nan)}, "input_scale"),
    "activation scale of zero": ("FP8", {**EIGHT, "input_scale": number(0)}, "input_scale"),
    "another algorithm": ("NVFP4", EIGHT, "uint8"),
    "no second scale": ("NVFP4", {k: v for k, v in NV.items() if k != "weight_scale_2"}, "weight_scale_2"),
    "NaN group": ("NVFP4", {**NV, "weight_scale": np.full((16, 4), np.nan, E4M3)}, "weight_scale'.*NaN"),
    "infinite second scale": ("NVFP4", {**NV, "weight_scale_2": number(np.inf)}, "weight_scale_2"),
    "no scale of 4 bits": ("NVFP4", {"weight": NV["weight"], "weight_scale_2": number()}, "weight_scale"),
    "groups of another size": ("NVFP4", {**NV, "weight_scale": np.ones((16, 2), E4M3)}, r"\[16, 4\]"),
    "smoothed inputs": ("NVFP4", {**NV, "pre_quant_scale": number(shape=(64,))}, "pre_quant_scale"),
    "zero points": ("MXFP4", {**MX, "weight_zero_point": number()}, "weight_zero_point"),
    "NaN exponent": ("MXFP4", {**MX, "weight_scale": NAN_BYTE}, "255"),
    "NaN exponent of 8 bits": ("MXFP8", {"weight": EIGHT["weight"], "weight_scale": NAN_BYTE}, "255"),
    "short rows": ("MXFP4", {**MX, "weight": MX["weight"][:, :16]}, r"\[16, 16\]"),
    "blocks of another size": ("FP8_PB_WO", {**EIGHT, "weight_scale": number(shape=(2, 1, 1, 1))}, r"\[1, 1, 1, 1\]"),
    "codes without a scale": ("FP8", {"weight": NV["weight"]}, "weight_scale"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case):
    algorithm, tensors, said = REFUSED[case]
    with pytest.raises(CheckpointError, match=f"(?s){said}") as refused:
        checked(tensors, quant_algo=algorithm)
    assert LAYER in str(refused.value)


@pytest.mark.parametrize("name", [LAYER, "up_proj", "*up_proj*", "model.layers.3*", "gate_up_proj"])
def test_stored_though_left_out(name):
    with pytest.raises(CheckpointError, match="leaves it out"):
        checked(EIGHT, quant_algo="FP8", exclude_modules=[name])


def test_groups_that_do_not_divide_a_row():
    with pytest.raises(CheckpointError, match="groups of 32 do not divide"):
        checked({**MX, "weight": np.zeros((16, 20), np.uint8)}, shape=(16, 40), quant_algo="MXFP4")


DECLARED = {
    "no algorithm": ({}, "quant_algo"),
    "a number": ({"quant_algo": 8}, "quant_algo=8"),
    "one that is not read": ({"quant_algo": "NVFP4_AWQ"}, "NVFP4_AWQ.*there is FP8"),
    "no layers": ({"quant_algo": "MIXED_PRECISION"}, "quantized_layers"),
    "layers in a list": ({"quant_algo": "MIXED_PRECISION", "quantized_layers": [LAYER]}, "quantized_layers"),
    "a layer of nothing": ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {LAYER: {}}}, "up_proj"),
    "an unknown one inside": (
        {"quant_algo": "MIXED_PRECISION", "quantized_layers": {LAYER: {"quant_algo": "W4A16"}}},
        "W4A16",
    ),
    "names that are numbers": ({"quant_algo": "FP8", "ignore": [1]}, "ignore"),
}


@pytest.mark.parametrize("case", DECLARED)
def test_declarations_that_cannot_be_honoured(case):
    declared, said = DECLARED[case]
    with pytest.raises(CheckpointError, match=f"(?s){said}"):
        checked(EIGHT, **declared)


@pytest.mark.parametrize(
    ("scheme", "algorithm"),
    [(ModelOptFP4, "FP8"), (ModelOptMXFP8, "NVFP4"), (ModelOptMixed, "FP8"), (ModelOptFP4, "MXFP8")],
)
def test_a_name_means_its_algorithm(scheme, algorithm):
    answer = scheme.matches(checkpoint(EIGHT, quant_algo=algorithm))
    assert isinstance(answer, Rejected)
    assert algorithm in answer.reason


def test_mixed_layers_follow_their_own_names():
    """Also under the name of the layer that they are fused into; a layer without a name is plain."""
    plain = {"weight": np.ones(SHAPE, ml_dtypes.bfloat16)}
    for name, tensors, said in (
        (LAYER, EIGHT, "FP8, one scale"),
        ("model.layers.3.mlp.gate_up_proj", EIGHT, "FP8, one scale"),
        ("model.layers.*.up_proj", EIGHT, "FP8, one scale"),
        ("model.layers.2.mlp.up_proj", plain, None),
    ):
        layers = {name: {"quant_algo": "FP8"}}
        assert checked(tensors, quant_algo="MIXED_PRECISION", quantized_layers=layers) == said


def test_says_what_it_does_not_use():
    tensors = {**EIGHT, "input_scale": number()}
    described = ModelOpt.from_checkpoint(checkpoint(tensors, quant_algo="FP8")).describe()
    assert described["layers"] == {"FP8": 1}
    assert "not used" in described["input scales"]
