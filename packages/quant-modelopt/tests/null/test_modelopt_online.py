"""Rounding while loading: scales as NVFP4 has them, and every number the nearest of e2m1, in float64."""

import ml_dtypes
import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm.interfaces.support import Accepted, Rejected
from modulm_quant_modelopt.online import NVFP4PerToken
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.oracles.weights import dequantised, faults

LAYER = "model.layers.0.mlp.up_proj"
VALUES = np.array([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def made(numbers, module=LAYER):
    checkpoint = MemoryCheckpoint({}, {f"{module}.weight": numbers})
    return NVFP4PerToken.from_checkpoint(checkpoint).weight(checkpoint, module, *numbers.shape)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_numbers_become_the_nearest(dtype):
    rng = np.random.default_rng(1)
    spread = np.exp(rng.normal(size=(700, 1)))
    numbers = (rng.normal(size=(700, 96)) * spread).astype(getattr(ml_dtypes, dtype, dtype))
    numbers[300:310] = 0
    exact = numbers.astype(np.float64)
    weight = made(numbers)
    assert not faults(weight)
    tensor = np.abs(exact).max() / 448 / 6
    wanted = np.abs(exact).reshape(700, 6, 16).max(-1) / 6 / tensor
    scales = E4M3[np.abs(E4M3 - wanted[..., None]).argmin(-1)]
    np.testing.assert_allclose(weight.scales.astype(float), scales, rtol=0.07, atol=0.002)  # ties may go either way
    factors = weight.scales.astype(float).repeat(16, axis=1) * tensor
    scaled = np.divide(exact, factors, out=np.zeros_like(exact), where=factors > 0)
    nearest = np.abs(VALUES - scaled[..., None]).min(-1)
    found = np.divide(dequantised(weight), factors, out=np.zeros_like(exact), where=factors > 0)
    np.testing.assert_allclose(np.abs(found - scaled), nearest, atol=1e-4)
    assert (np.abs(weight.scales.astype(float) - wanted) <= np.abs(scales - wanted) + 1e-4 * (1 + wanted)).all()


def test_what_becomes_one_matrix_has_one_scale():
    rng = np.random.default_rng(2)
    names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    tensors = {f"a.{name}.weight": rng.normal(size=(8, 32)).astype(np.float32) for name in names}
    checkpoint = MemoryCheckpoint({}, tensors)
    most = {name: np.abs(tensors[f"a.{name}.weight"]).max() for name in names}
    for name in names:
        weight = NVFP4PerToken().weight(checkpoint, f"a.{name}", 8, 32)
        wanted = most[name] if name == "o_proj" else max(most[other] for other in names[:3])
        np.testing.assert_allclose(weight.codebook.max(), 6 * wanted / 448 / 6, rtol=1e-6)


@pytest.mark.parametrize("numbers", [np.zeros((4, 32)), np.full((4, 32), 1e-44), np.full((2, 16), 3e38)])
def test_nothing_overflows(numbers):
    numbers = numbers.astype(np.float32)
    assert np.isfinite(dequantised(made(numbers))).all()


def test_refusals():
    numbers = np.ones((600, 64), np.float32)
    numbers[599, 63] = np.nan
    with pytest.raises(CheckpointError, match=r"up_proj\.weight.*NaN"):
        made(numbers)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight.*groups of 16"):
        made(np.ones((4, 40), np.float32))
    with pytest.raises(CheckpointError, match=r"up_proj\.weight.*int8"):
        made(np.ones((4, 32), np.int8))


def test_what_it_takes():
    assert made(np.ones((4, 32), np.float32), "lm_head") is None
    assert isinstance(NVFP4PerToken.quantizes(MemoryCheckpoint({}, {})), Accepted)
    stored = MemoryCheckpoint({"quantization_config": {"quant_method": "modelopt"}}, {})
    assert isinstance(NVFP4PerToken.quantizes(stored), Rejected)
    assert isinstance(NVFP4PerToken.matches(stored), Rejected)
