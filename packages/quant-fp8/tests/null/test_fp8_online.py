"""Rounding while loading: every number becomes the nearest of the 253 that e4m3 has, times its scale, in float64."""

import ml_dtypes
import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm.interfaces.quantization import Dense
from modulm.interfaces.support import Accepted, Rejected
from modulm_quant_fp8.online import MXFP8, PerBlock, PerChannel, PerTensor
from modulm_quant_fp8.scheme import FP8
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.oracles.weights import dequantised, faults

LAYER = "model.layers.0.mlp.up_proj"
CODES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
VALUES = np.unique(CODES[np.isfinite(CODES)])


def made(scheme, numbers, module=LAYER):
    checkpoint = MemoryCheckpoint({}, {f"{module}.weight": numbers})
    return scheme.from_checkpoint(checkpoint).weight(checkpoint, module, *numbers.shape)


def scales_of(numbers, high, wide):
    """The scale of every number, in float64."""
    spread = np.empty(numbers.shape)
    for row in range(0, len(numbers), high):
        for column in range(0, numbers.shape[1], wide):
            block = np.s_[row : row + high, column : column + wide]
            spread[block] = np.abs(numbers[block]).max() / 448 or 1
    return spread


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("scheme", "high", "wide"), [(PerTensor, 1200, 300), (PerChannel, 1, 300), (PerBlock, 128, 128)]
)
def test_numbers_become_the_nearest(scheme, high, wide, dtype):
    rng = np.random.default_rng(1)
    numbers = (rng.normal(size=(1200, 300)) * np.exp(rng.normal(size=(1200, 1)))).astype(
        getattr(ml_dtypes, dtype, dtype)
    )
    numbers[500:700] = 0
    exact = numbers.astype(np.float64)
    weight = made(scheme, numbers)
    assert not faults(weight)
    scales = scales_of(exact, high, wide)
    wanted = exact / scales
    above = np.clip(np.searchsorted(VALUES, wanted), 1, len(VALUES) - 1)
    nearest = np.minimum(np.abs(VALUES[above] - wanted), np.abs(VALUES[above - 1] - wanted))
    assert (np.abs(dequantised(weight) / scales - wanted) <= nearest + 1e-6 * (1 + np.abs(wanted))).all()


def test_nothing_is_lost_of_tiny_numbers():
    numbers = np.full((4, 32), 1e-44, np.float32)
    assert np.isfinite(dequantised(made(PerTensor, numbers))).all()


def test_powers_of_two():
    """The numbers of OCP's rule: the largest power of two in a group, over 256; what 448 cannot reach becomes 448."""
    numbers = np.zeros((3, 64), np.float32)
    numbers[0, :4] = 1, -1.9, 0.3, 2.0**-12
    numbers[0, 32:] = 3.0
    numbers[1, 5] = 2.0**-140
    weight = made(MXFP8, numbers)
    assert not faults(weight)
    np.testing.assert_array_equal(weight.scales, [[2.0**-8, 2.0**-7], [2.0**-127, 1], [1, 1]])
    worth = dequantised(weight)
    np.testing.assert_array_equal(worth[0, :4], [1, -448 / 256, 0.3125, 2.0**-12])
    np.testing.assert_array_equal(worth[0, 32:], 3)
    assert abs(worth[1, 5] - 2.0**-140) <= 2.0**-137  # half of e4m3's smallest step, at the smallest power of two


def test_powers_of_two_round_to_the_nearest():
    numbers = np.random.default_rng(3).normal(size=(200, 96)).astype(np.float32)
    weight = made(MXFP8, numbers)
    scales = np.exp2(np.floor(np.log2(np.abs(numbers.astype(np.float64)).reshape(200, 3, 32).max(-1))) - 8)
    np.testing.assert_array_equal(weight.scales, scales)
    wanted = np.clip(numbers / scales.repeat(32, axis=1), -448, 448)
    nearest = np.abs(VALUES - wanted[..., None]).min(-1)
    np.testing.assert_allclose(np.abs(dequantised(weight) / scales.repeat(32, axis=1) - wanted), nearest, atol=1e-4)


def test_rows_of_whole_groups_alone():
    with pytest.raises(CheckpointError, match=r"up_proj\.weight.*groups of 32"):
        made(MXFP8, np.ones((4, 40), np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(value):
    numbers = np.ones((300, 64), np.float32)
    numbers[299, 63] = value
    with pytest.raises(CheckpointError, match=r"up_proj\.weight"):
        made(PerBlock, numbers)


@pytest.mark.parametrize(
    "module", ["lm_head", "model.embed_tokens", "model.layers.0.mlp.gate", "model.layers.0.block_sparse_moe.gate"]
)
def test_outputs_embeddings_and_routers_stay(module):
    assert made(PerTensor, np.ones((4, 32), np.float32), module) is None


def test_who_may_be_quantized():
    plain = MemoryCheckpoint({}, {f"{LAYER}.weight": np.ones((4, 32), np.float16)})
    stored = MemoryCheckpoint({"quantization_config": {"quant_method": "awq"}}, {})
    codes = MemoryCheckpoint({}, {f"{LAYER}.weight": np.ones((4, 32), np.int8)})
    for scheme in (FP8, PerTensor, PerChannel, PerBlock):
        assert isinstance(scheme.quantizes(plain), Accepted)
        assert isinstance(scheme.quantizes(stored), Rejected)
        assert isinstance(scheme.quantizes(codes), Rejected)
        assert isinstance(scheme.matches(plain), Rejected)


@pytest.mark.parametrize("scheme", [PerTensor, PerChannel, PerBlock, MXFP8])
def test_stacked_experts_are_rounded_one_by_one(scheme):
    numbers = np.random.default_rng(0).normal(size=(6, 32)).astype(np.float32)
    matrix = Dense(out_features=6, in_features=32, data=numbers)
    sliced = scheme.from_checkpoint(MemoryCheckpoint({}, {})).slice("model.layers.0.mlp.experts.down_proj", matrix)
    np.testing.assert_array_equal(dequantised(sliced), dequantised(made(scheme, numbers)))


def test_fp8_of_a_plain_checkpoint_has_one_scale_for_a_tensor():
    numbers = np.random.default_rng(0).normal(size=(6, 32)).astype(np.float32)
    np.testing.assert_array_equal(dequantised(made(FP8, numbers)), dequantised(made(PerTensor, numbers)))
