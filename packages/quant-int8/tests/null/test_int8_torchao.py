"""torchao's int8 layers keep the contract of schemes, and what is wrong with one is named."""

import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm.interfaces.quantization import ChannelInt8, GroupedInt
from modulm_quant_int8.torchao import TorchAO
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.quantization import QuantizationConformance
from modulm_testkit.samples import QuantizedSample

UP = "model.layers.0.mlp.up_proj"
WEIGHT_ONLY = {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {"group_size": None}}
HEAD = np.arange(32, dtype=np.float32).reshape(4, 8)


def layer(groups=1, zeros=False):
    """Return random tensors and what they are worth."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-128, 128, (6, 64), dtype=np.int8)
    scales = rng.uniform(0.01, 0.1, (6, groups)).astype(np.float32)
    points = rng.integers(-9, 9, (6, groups), dtype=np.int8) * zeros
    spread = [part.astype(np.float64).repeat(64 // groups, axis=1) for part in (points, scales)]
    tensors = {"_weight_qdata": codes, "_weight_scale": scales, "_weight_zero_point": points.astype(np.int8)}
    return tensors, (codes - spread[0]) * spread[1]


def checkpoint(tensors, default=WEIGHT_ONLY):
    declared = {"quant_method": "torchao", "quant_type": {"default": default}}
    named = {f"{UP}.{name}": array for name, array in tensors.items()} | {"lm_head.weight": HEAD}
    return MemoryCheckpoint({"architectures": ["LlamaForCausalLM"], "quantization_config": declared}, named)


class TestTorchAO(QuantizationConformance):
    @pytest.fixture(params=[(1, False), (4, False), (1, True), (2, True)])
    def scheme(self, request):
        tensors, worth = layer(*request.param)
        weights, plain = {UP: worth}, {"lm_head": HEAD}
        return QuantizedSample(scheme=TorchAO, checkpoint=checkpoint(tensors), weights=weights, plain=plain)


def load(one):
    return TorchAO.from_checkpoint(one).weight(one, UP, 6, 64)


def test_rows_become_bytes_by_channel_and_groups_do_not():
    assert isinstance(load(checkpoint(layer()[0])), ChannelInt8)
    assert isinstance(load(checkpoint(layer(4)[0])), GroupedInt)


def test_zero_points_may_be_left_out():
    tensors, _ = layer()
    del tensors["_weight_zero_point"]
    assert isinstance(load(checkpoint(tensors)), ChannelInt8)


FAULTS = {
    "no codes": ("_weight_qdata", None, "_weight_qdata'"),
    "codes of 4 bits": ("_weight_qdata", np.zeros((6, 64), np.uint8), "_weight_qdata' .*uint8"),
    "another shape": ("_weight_qdata", np.zeros((6, 32), np.int8), r"_weight_qdata' .*\[6, 32\]"),
    "no scales": ("_weight_scale", None, "_weight_scale'"),
    "uneven groups": ("_weight_scale", np.ones((6, 5), np.float32), "_weight_scale' .*5 scales"),
    "no groups": ("_weight_scale", np.ones((6, 0), np.float32), "_weight_scale' .*0 scales"),
    "NaN": ("_weight_scale", np.full((6, 1), np.nan, np.float32), "_weight_scale' .*NaN"),
    "zero points of other groups": ("_weight_zero_point", np.zeros((6, 2), np.int8), "_weight_zero_point' "),
    "a tensor too many": ("_weight_bias", np.zeros(6, np.float32), "_weight_bias' .*no place"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault):
    name, array, said = FAULTS[fault]
    tensors, _ = layer()
    tensors.pop(name, None)
    if array is not None:
        tensors[name] = array
    one = checkpoint(tensors)
    for ask in (TorchAO.from_checkpoint(one).rule, TorchAO.from_checkpoint(one).weight):
        with pytest.raises(CheckpointError, match=said):
            ask(one, UP, 6, 64)


@pytest.mark.parametrize(
    "default",
    [
        None,
        7,
        {"_type": "Int4WeightOnlyConfig", "_data": {}},
        {"_type": "FqnToConfig", "_data": {}},
        {"_type": "FqnToConfig", "_data": {"fqn_to_config": {"_default": {"_type": "Float8WeightOnlyConfig"}}}},
    ],
)
def test_other_kinds_are_refused(default):
    with pytest.raises(CheckpointError, match=r"quant_type=.*Int8WeightOnlyConfig"):
        TorchAO.from_checkpoint(checkpoint(layer()[0], default))


def test_kinds_by_layer():
    kinds = {"_default": WEIGHT_ONLY, "lm_head": None, UP: {"_type": "Int8DynamicActivationInt8WeightConfig"}}
    one = checkpoint(layer()[0], {"_type": "ModuleFqnToConfig", "_data": {"module_fqn_to_config": kinds}})
    described = TorchAO.from_checkpoint(one).describe()
    assert described["declared"] == ["Int8DynamicActivationInt8WeightConfig", "Int8WeightOnlyConfig"]
