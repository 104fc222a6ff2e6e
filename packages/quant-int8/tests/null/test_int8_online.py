"""What is rounded while it loads, how, and what is left alone."""

import ml_dtypes
import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm.interfaces.quantization import ChannelInt8, Dense
from modulm.interfaces.support import Accepted, Rejected
from modulm_quant_int8.online import ExpertsInt8, PerChannelInt8, rounded
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.oracles.weights import dequantised, faults

LAYERS = ("model.layers.0.mlp.up_proj", "model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.shared_expert.up_proj")
EXPERTS = ("model.layers.0.mlp.experts.3.down_proj", "model.layers.0.block_sparse_moe.experts.0.w1")
KEPT = ("model.embed_tokens", "lm_head", "model.layers.0.mlp.gate", "model.layers.0.mlp.shared_expert_gate")


def numbers(dtype=np.float32, shape=(5, 48)):
    found = np.random.default_rng(0).standard_normal(shape) * np.geomspace(1e-3, 30, shape[0])[:, None]
    return found.astype(dtype)


def checkpoint(names=LAYERS + EXPERTS + KEPT, dtype=np.float32):
    return MemoryCheckpoint({"architectures": ["X"]}, {f"{name}.weight": numbers(dtype) for name in names})


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_number_is_the_nearest_of_its_row(dtype):
    given = numbers(dtype)
    given[2] = 0
    exact = given.astype(np.float64)
    weight = rounded(given, "it")
    assert not faults(weight)
    step = np.abs(exact).max(axis=1, keepdims=True) / 127
    np.testing.assert_allclose(weight.scales, step[:, 0], rtol=1e-6)
    assert (np.abs(dequantised(weight) - exact) <= step * (0.5 + 1e-5)).all()
    assert (np.abs(weight.codes.astype(int)).max(axis=1) == np.where(step[:, 0] > 0, 127, 0)).all()


@pytest.mark.parametrize("spoiled", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_refused(spoiled):
    given = numbers()
    given[3, 7] = spoiled
    with pytest.raises(CheckpointError, match="it holds a number that is NaN or infinite"):
        rounded(given, "it")


@pytest.mark.parametrize(("scheme", "taken"), [(PerChannelInt8, LAYERS + EXPERTS), (ExpertsInt8, EXPERTS)])
def test_layers_that_are_taken(scheme, taken):
    one = checkpoint()
    made = scheme.from_checkpoint(one)
    for name in LAYERS + EXPERTS + KEPT:
        weight = made.weight(one, name, 5, 48)
        assert (made.rule(one, name, 5, 48) is not None) == (name in taken)
        if name in taken:
            np.testing.assert_array_equal(weight.codes, rounded(numbers(), "").codes)
        else:
            assert weight is None
    assert made.describe()["layers"] == len(taken)


def test_stacked_experts_are_taken():
    dense = Dense(out_features=5, in_features=48, data=numbers())
    for scheme in (PerChannelInt8, ExpertsInt8):
        made = scheme.from_checkpoint(checkpoint())
        assert isinstance(made.slice("model.layers.0.mlp.experts.gate_up_proj", dense), ChannelInt8)
    assert ExpertsInt8().slice("model.layers.0.other", dense) is dense


def test_a_model_without_experts_is_refused():
    assert isinstance(ExpertsInt8.quantizes(checkpoint()), Accepted)
    answer = ExpertsInt8.quantizes(checkpoint(LAYERS + KEPT))
    assert isinstance(answer, Rejected) and "no experts" in answer.reason
    assert isinstance(PerChannelInt8.quantizes(checkpoint(LAYERS)), Accepted)


def test_no_checkpoint_is_stored_so():
    for scheme in (PerChannelInt8, ExpertsInt8):
        assert isinstance(scheme.matches(checkpoint()), Rejected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, ml_dtypes.float8_e4m3fn])
def test_layers_that_are_quantized_already_are_named(dtype):
    name = LAYERS[0]
    one = MemoryCheckpoint({}, {f"{name}.weight": np.zeros((5, 48), dtype)})
    with pytest.raises(CheckpointError, match=f"'{name}.weight'"):
        PerChannelInt8.from_checkpoint(one).rule(one, name, 5, 48)
