"""Damaged and contradictory FP8 checkpoints are refused by name, from headers alone but for the scales themselves."""

import ml_dtypes
import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm_quant_fp8.scheme import FP8, FbgemmFP8
from modulm_testkit.fakes import MemoryCheckpoint

LAYER, SHAPE = "model.layers.3.mlp.up_proj", (16, 64)
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def checked(tensors, *, scheme=FP8, module=LAYER, shape=SHAPE, **declared):
    """Ask the rule of a layer of a checkpoint whose tensors are given by their last names."""
    named = {f"{LAYER}.{name}": array for name, array in tensors.items()}
    checkpoint = MemoryCheckpoint({"quantization_config": {"quant_method": scheme.name, **declared}}, named)
    made = scheme.from_checkpoint(checkpoint)
    said = made.rule(checkpoint, module, *shape)
    weight = made.weight(checkpoint, module, *shape)
    assert (said is None) == (weight is None)
    return said


def scale(value=0.5, shape=(), dtype=np.float32):
    return np.full(shape, value, dtype)


WEIGHT = np.ones(SHAPE, E4M3)
BLOCKS = {"weight_block_size": [8, 16]}
REFUSED = {
    "no scale": ({"weight": WEIGHT}, {}, "has neither.*weight_scale'"),
    "two scales": ({"weight": WEIGHT, "weight_scale": scale(), "weight_scale_inv": scale()}, {}, "has both"),
    "scales of another count": ({"weight": WEIGHT, "weight_scale": scale(shape=(15, 1))}, {}, "one for each row"),
    "scales of integers": ({"weight": WEIGHT, "weight_scale": scale(1, dtype=np.int32)}, {}, "int32"),
    "NaN": ({"weight": WEIGHT, "weight_scale": scale(np.nan)}, {}, "NaN"),
    "infinite": ({"weight": WEIGHT, "weight_scale": scale(np.inf, (16, 1))}, {}, "infinite"),
    "another width": ({"weight": WEIGHT[:, :32], "weight_scale": scale()}, {}, r"\[16, 32\]"),
    "no blocks": ({"weight": WEIGHT, "weight_scale_inv": scale()}, BLOCKS, "weight_scale_inv.*in blocks"),
    "other blocks": ({"weight": WEIGHT, "weight_scale_inv": scale(shape=(2, 2))}, BLOCKS, r"\[2, 4\]"),
    "no activation scale": (
        {"weight": WEIGHT, "weight_scale": scale()},
        {"activation_scheme": "static"},
        "input_scale",
    ),
    "activation scale of zero": (
        {"weight": WEIGHT, "weight_scale": scale(), "input_scale": scale(0)},
        {},
        "not above 0",
    ),
    "NaN activation scale": (
        {"weight": WEIGHT, "weight_scale": scale(), "input_scale": scale(np.nan)},
        {},
        "input_scale",
    ),
    "zero points": (
        {"weight": WEIGHT, "weight_scale": scale(), "weight_zero_point": scale(1)},
        {},
        "weight_zero_point",
    ),
    "a part of another format": (
        {"weight": WEIGHT, "weight_scale": scale(), "weight.absmax": scale()},
        {},
        "weight.absmax",
    ),
    "another float": ({"weight": WEIGHT.astype(E5M2), "weight_scale": scale()}, {"fmt": "e4m3"}, "float8_e5m2"),
    "wide weight with scales": ({"weight": np.ones(SHAPE, np.float16), "weight_scale": scale()}, {}, "8-bit floats"),
    "integers with scales": ({"weight": np.ones(SHAPE, np.int8), "weight_scale": scale()}, {}, "quant_method"),
    "scales without a weight": ({"weight_scale": scale()}, {}, "is missing"),
    "stored though left out": (
        {"weight": WEIGHT, "weight_scale": scale()},
        {"ignored_layers": ["mlp.up_proj"]},
        "leaves it out",
    ),
    "left out by a fused name": (
        {"weight": WEIGHT, "weight_scale": scale()},
        {"modules_to_not_convert": ["gate_up_proj"]},
        "leaves it out",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case):
    tensors, declared, said = REFUSED[case]
    with pytest.raises(CheckpointError, match=f"(?s){said}") as refused:
        checked(tensors, **declared)
    assert LAYER in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("weight_block_size", [0, 128]),
        ("weight_block_size", 128),
        ("weight_block_size", [1.5, 2]),
        ("weight_block_size", [128]),
        ("activation_scheme", "token"),
        ("fmt", "e4m3fnuz"),
        ("ignored_layers", "lm_head"),
        ("modules_to_not_convert", [1]),
    ],
)
def test_declarations_that_cannot_be_honoured(key, value):
    with pytest.raises(CheckpointError, match=key):
        checked({"weight": WEIGHT, "weight_scale": scale()}, **{key: value})


def test_each_row_of_fbgemm_has_a_scale():
    with pytest.raises(CheckpointError, match=r"up_proj.weight_scale' in .* \[\], but .* with one for each row"):
        checked({"weight": WEIGHT, "weight_scale": scale()}, scheme=FbgemmFP8)


def test_rows_of_fbgemm_are_e4m3():
    with pytest.raises(CheckpointError, match="float8_e5m2"):
        checked({"weight": WEIGHT.astype(E5M2), "weight_scale": scale(shape=(16, 1))}, scheme=FbgemmFP8)


@pytest.mark.parametrize("names", [[LAYER], ["up_proj"], ["gate_up_proj"], ["re:.*up_proj"], ["model.layers.3"], []])
def test_layers_of_plain_floats_are_left_alone(names):
    """Also where the list forgets them, as DeepSeek's does its experts' gate."""
    assert checked({"weight": np.ones(SHAPE, ml_dtypes.bfloat16)}, modules_to_not_convert=names) is None


QKV = [f"model.layers.3.self_attn.{name}_proj" for name in "qkv"]


@pytest.mark.parametrize("names", [QKV, ["self_attn"], ["re:.*[qkv]_proj"], [QKV[0], "k_proj", "re:.*v_proj"]], ids=str)
def test_a_list_that_names_all_parts_means_what_they_are_fused_into(names):
    module = "model.layers.3.self_attn.qkv_proj"
    config = {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": names}}
    checkpoint = MemoryCheckpoint(config, {f"{module}.weight": np.ones(SHAPE, ml_dtypes.bfloat16)})
    assert FP8.from_checkpoint(checkpoint).rule(checkpoint, module, *SHAPE) is None


def test_a_list_that_names_some_parts_is_refused():
    module = "model.layers.3.self_attn.qkv_proj"
    config = {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": QKV[:2]}}
    checkpoint = MemoryCheckpoint(config, {f"{module}.weight": np.ones(SHAPE, ml_dtypes.bfloat16)})
    with pytest.raises(CheckpointError, match="q_proj, k_proj of layer .*qkv_proj', but not v_proj"):
        FP8.from_checkpoint(checkpoint).rule(checkpoint, module, *SHAPE)


@pytest.mark.parametrize("names", [["model.layers.30"], ["up_pro"], ["qkv_proj"], ["p_proj"], ["re:up_proj"]])
def test_lists_mean_whole_words(names):
    assert checked({"weight": WEIGHT, "weight_scale": scale()}, ignored_layers=names) == "fp8"


def test_says_what_it_does_not_use():
    tensors = {f"{LAYER}.weight": WEIGHT, f"{LAYER}.weight_scale": scale(), f"{LAYER}.input_scale": scale()}
    tensors["model.layers.3.self_attn.k_proj.k_scale"] = scale()
    config = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
    described = FP8.from_checkpoint(MemoryCheckpoint(config, tensors)).describe()
    assert described["layers"] == 1
    assert "static" in described["activations"]
    assert "1 layers" in described["input scales"]
    assert described["KV scales"].startswith("of 1 layers: for a KV cache of 8-bit floats")
