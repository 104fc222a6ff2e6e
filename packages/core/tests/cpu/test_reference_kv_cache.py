"""Numbers as narrow caches of the reference hold them, code by code, against `ml_dtypes` and float64 arithmetic."""

import ml_dtypes
import numpy as np
import pytest
import torch

from modulm.interfaces.kv_cache import KVScales
from modulm.reference import kv_cache_torch

KINDS = {"fp8_e4m3": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2}
SCALES = KVScales(key=(0.031, 2.5), value=(1.0, 7e-4))
ONE = torch.ones(2, 1, 1)


def every_size(kind):
    """All numbers of a type, what lies half way between neighbours, a bit beside that, and far beyond: [n, 2, 1, 8]."""
    codes = np.arange(256, dtype=np.uint8).view(kind).astype(np.float64)
    codes = np.sort(codes[np.isfinite(codes)])
    halves = (codes[1:] + codes[:-1]) / 2
    rng = np.random.default_rng(0)
    noise = rng.normal(size=2000) * 2.0 ** rng.integers(-30, 18, 2000)
    numbers = np.concatenate([codes, halves, halves * (1 + 1e-6), halves * (1 - 1e-6), noise, [1e30, -1e30]])
    numbers = np.resize(numbers, -(-len(numbers) // 16) * 16).astype(np.float32)
    return numbers.reshape(-1, 2, 1, 8)


@pytest.mark.parametrize("dtype", KINDS)
def test_floats_of_8_bits_are_the_nearest(dtype):
    kind, numbers = KINDS[dtype], every_size(KINDS[dtype])
    largest = float(ml_dtypes.finfo(kind).max)
    codes = kv_cache_torch.stored(torch.from_numpy(numbers), dtype, ONE)
    wanted = np.clip(numbers, -largest, largest).astype(kind)
    assert codes.dtype == torch.uint8 and codes.shape == numbers.shape
    np.testing.assert_array_equal(codes.numpy().view(kind).astype(float), wanted.astype(float))
    np.testing.assert_array_equal(kv_cache_torch.restored(codes, dtype, ONE).numpy(), wanted.astype(np.float32))


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "nvfp4"])
def test_what_is_not_a_number_stays_none(dtype):
    numbers = torch.full((3, 2, 1, 32), 6.0)
    numbers[1, 0, 0, 5] = torch.nan
    restored = kv_cache_torch.restored(kv_cache_torch.stored(numbers, dtype, ONE), dtype, ONE)
    assert restored[1, 0, 0, 5].isnan()
    numbers[1, 0] = restored[1, 0] = 0
    torch.testing.assert_close(restored, numbers, rtol=1e-6, atol=0)


def test_each_head_has_its_scales():
    rng = np.random.default_rng(1)
    factors = np.array([SCALES.key, SCALES.value])[..., None]
    numbers = (rng.normal(size=(50, 2, 2, 16)) * factors * 20).astype(np.float32)
    scales = kv_cache_torch.layer_scales(SCALES, torch.device("cpu"))
    codes = kv_cache_torch.stored(torch.from_numpy(numbers), "fp8_e4m3", scales)
    wanted = (numbers / factors.astype(np.float32)).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(codes.numpy(), wanted.view(np.uint8))
    restored = kv_cache_torch.restored(codes, "fp8_e4m3", scales).numpy()
    np.testing.assert_allclose(restored, wanted.astype(np.float64) * factors, rtol=2e-7)


def test_bytes_and_a_scale_for_each_token():
    numbers = np.random.default_rng(2).normal(size=(60, 2, 3, 24)).astype(np.float32) * 5
    numbers[3] = 0
    codes = kv_cache_torch.stored(torch.from_numpy(numbers), "int8_per_token_head", ONE)
    assert codes.dtype == torch.int8 and codes.shape[-1] == kv_cache_torch.width("int8_per_token_head", 24) == 28
    restored = kv_cache_torch.restored(codes, "int8_per_token_head", ONE).numpy()
    step = np.abs(numbers.astype(np.float64)).max(-1, keepdims=True) / 127
    assert (np.abs(restored - numbers) <= 0.5001 * step).all()


def test_4_bits_and_a_scale_for_16_numbers():
    """The first half of the bytes: pairs of codes, the first in the low bits. Then scales of 8 bits."""
    rng = np.random.default_rng(3)
    numbers = (rng.normal(size=(400, 2, 2, 32)) * 2.0 ** rng.integers(-6, 6, (400, 2, 2, 1))).astype(np.float32)
    numbers[0], numbers[1, ..., :16] = 0, 0
    ties = np.array([0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5])
    numbers[2, 0, 0, :16] = ties
    scales = torch.tensor([[[0.25], [0.5]], [[1.0], [2.0]]])
    codes = kv_cache_torch.stored(torch.from_numpy(numbers), "nvfp4", scales)
    assert codes.dtype == torch.uint8 and codes.shape[-1] == kv_cache_torch.width("nvfp4", 32) == 18
    groups = numbers.reshape(400, 2, 2, 2, 16)
    wide = scales.numpy()[None].astype(np.float32)
    factors = (np.abs(groups).max(-1) / np.float32(6) / wide).clip(max=448).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(codes[..., 16:].numpy(), factors.view(np.uint8))
    factors = (factors.astype(np.float32) * wide)[..., None]
    wanted = np.divide(groups, factors, out=np.zeros_like(groups), where=factors > 0).astype(ml_dtypes.float4_e2m1fn)
    bits = np.abs(wanted.astype(np.float32)).reshape(numbers.shape)
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    low = magnitudes[codes[..., :16].numpy() & 7]
    np.testing.assert_array_equal(low, bits[..., ::2])
    restored = kv_cache_torch.restored(codes, "nvfp4", scales).numpy()
    np.testing.assert_array_equal(restored, (wanted.astype(np.float32) * factors).reshape(numbers.shape))
