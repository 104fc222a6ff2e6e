"""Scales that are whole multiples of coarser ones, as in GGUF's K types: a byte each, with the same values exactly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from activation_rule import quantized
from tile_rule import assert_tiled, is_tiled

from modulm.interfaces.quantization import Codebook4, GroupedInt
from modulm.reference.dequantize import dequantize
from modulm_kernels_cpu import _native, packed_int8, packed_q4
from modulm_kernels_cpu.scale_steps import find_steps

ISAS = [name for name in ("generic", "avx2", "avxvnni", "avx512", "amx", "neon") if _native.can_run(name)]
TYPES = {  # bits, group size, multiples of scales, of minimums (none: one zero point), bytes of 256 weights in a file
    "Q2_K": (2, 16, (0, 16), (0, 16), 84),
    "Q3_K": (3, 16, (-32, 32), None, 110),
    "Q4_K": (4, 32, (0, 64), (0, 64), 144),
    "Q5_K": (5, 32, (0, 64), (0, 64), 176),
    "Q6_K": (6, 16, (-128, 128), None, 210),
}


CODEBOOKS = {  # values, group size, multiples of scales, bytes of 256 weights
    "IQ4_XS": ((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), 32, (-32, 32), 138),
    "IQ2_XS": ((8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43, 0, 0, 0, 0, 0), 16, (1, 32), 114),
    "IQ1_S": ((-0.875, 0.125, 1.125, 0, 0, 0, 0, 0, -1.125, -0.125, 0.875, 0, 0, 0, 0, 0), 32, (1, 16), 106),
}


def make_codebook(name, out_features=40, in_features=512):
    """The same of types with 16 values; of two of them 6 are in use, so that 3 bits are enough."""
    values, group_size, multiples, _ = CODEBOOKS[name]
    work = np.random.default_rng(len(name))
    used = np.flatnonzero(values).astype(np.uint8)
    codes = used[work.integers(0, len(used), (out_features, in_features))]
    coarse = (work.standard_normal((out_features, in_features // 256)) / 500).astype(np.float16).astype(np.float32)
    scales = coarse.repeat(256 // group_size, axis=1) / 8
    scales *= work.integers(*multiples, (out_features, in_features // group_size)).astype(np.float32)
    shape = {"out_features": out_features, "in_features": in_features, "group_size": group_size}
    return Codebook4(
        codes=codes[:, 0::2] | codes[:, 1::2] << 4, scales=scales, codebook=np.array(values, np.float32), **shape
    )


def make(name, out_features=40, in_features=512, seed=0):
    """A random weight as `quant-gguf` makes it of that type: float32 products of float16 and small integers."""
    bits, group_size, scales, minimums, _ = TYPES[name]
    work = np.random.default_rng(seed)
    codes = work.integers(0, 1 << bits, (out_features, in_features), np.uint8)
    if bits <= 4:
        codes = codes[:, 0::2] | codes[:, 1::2] << 4

    def products(span):
        coarse = (work.standard_normal((out_features, in_features // 256)) / 500).astype(np.float16)
        multiples = work.integers(*span, (out_features, in_features // group_size)).astype(np.float32)
        return coarse.astype(np.float32).repeat(256 // group_size, axis=1) * multiples

    found = products(scales)
    low = -products(minimums) if minimums else found * -np.float32(1 << (bits - 1))
    shape = {"out_features": out_features, "in_features": in_features, "bits": bits, "group_size": group_size}
    return GroupedInt(codes=codes, scales=found, minimums=low, **shape)


def pack(weight, precision="fast"):
    return (packed_q4 if weight.bits == 4 else packed_int8).pack(weight, precision)


@pytest.mark.parametrize("name", TYPES)
def test_memory_is_the_files(name):
    weight = make(name, 64, 1024)
    assert pack(weight).size_bytes <= 1.04 * TYPES[name][-1] * 64 * 4


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_the_same_bits(name, seed):
    weight = make(name, seed=seed)
    assert pack(weight).size_bytes < 1.04 * TYPES[name][-1] * 64 * 2
    got = pack(weight).rows(torch.arange(40), torch.float32)
    assert torch.equal(got, dequantize(weight, torch.float32))


@pytest.mark.parametrize("name", CODEBOOKS)
def test_codebooks_take_no_more_bits_than_values_in_use(name):
    weight = make_codebook(name, 64)
    packed = packed_q4.pack(weight)
    assert packed.size_bytes == 64 * 2 * CODEBOOKS[name][-1]
    assert torch.equal(packed.rows(torch.arange(64), torch.float32), dequantize(weight, torch.float32))
    finer = replace(weight, codebook=weight.codebook * np.float32(1.01))  # no whole steps of a power of two
    assert packed_q4.pack(finer).size_bytes > packed.size_bytes
    assert torch.equal(packed_q4.pack(finer).rows(torch.arange(64), torch.float32), dequantize(finer, torch.float32))


def assert_products(weight, pack, isa, count, largest):
    """Hold both precisions against float64; `largest` is [out_features, groups]."""
    matrix = dequantize(weight, torch.float32).double().numpy()
    x = np.random.default_rng(count).standard_normal((count, 512)).astype(np.float32)
    rounded = quantized(x, 32 if weight.group_size % 32 == 0 else 16).values(512)
    largest = largest.repeat(weight.group_size, axis=1)
    for precision, values in (("fast", rounded), ("exact", x.astype(np.float64))):
        got = pack(weight, precision).linear(torch.from_numpy(x), isa).numpy()
        if precision == "fast" and is_tiled(isa, count):
            assert_tiled(got, x, matrix, terms=largest)
        else:
            assert (np.abs(got - values @ matrix.T) <= 3e-6 * (np.abs(values) @ largest.T) + 1e-30).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CODEBOOKS)
@pytest.mark.parametrize("count", [1, 3, 5, 16, 37])
def test_products_of_codebooks_agree_with_float64(isa, name, count):
    weight = make_codebook(name)
    largest = np.abs(weight.scales).astype(np.float64) * np.abs(weight.codebook).max()
    assert_products(weight, packed_q4.pack, isa, count, largest)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("count", [1, 3, 5, 16, 37])
def test_products_agree_with_float64(isa, name, count):
    weight = make(name)
    largest = np.abs(weight.scales).astype(np.float64) * (1 << weight.bits) + np.abs(weight.minimums)
    assert_products(weight, pack, isa, count, largest)


def test_what_scales_are_taken_apart_into():
    coarse = np.array([[3.0, -1.5], [0.0, 2.0**-20]], np.float16)
    multiples = np.array([[1, 63, 0, -7, 2, 2, 2, 2, -1, -64, 5, 0, 0, 0, 0, 0], [9] * 8 + [4, 8, 12, 100] * 2])
    found = find_steps(32, coarse.astype(np.float32).repeat(8, axis=1) * multiples.astype(np.float32))
    assert found.span == 8 and not found.in_nibbles
    back = found.coarse[0].astype(np.float32).repeat(8, axis=1) * found.multiples[0] * np.float32(found.unit)
    np.testing.assert_array_equal(back, coarse.astype(np.float32).repeat(8, axis=1) * multiples)


@pytest.mark.parametrize("common", [3, 21, 63, 127])
def test_multiples_that_have_a_factor_in_common(common):
    """11 bits of a float16 times that factor are more than a float16 holds."""
    coarse = np.float16(1.9990234)
    scales = np.full((5, 8), np.float32(coarse) * np.float32(common))
    found = find_steps(32, scales)
    np.testing.assert_array_equal(found.coarse[0].astype(np.float32) * found.multiples[0], scales)


def test_coarse_scales_below_float16():
    """IQ2 scales are eighths of a float16, which may be its smallest."""
    scales = np.full((4, 8), np.float32(2.0**-27)) * np.arange(1, 9, dtype=np.float32)
    found = find_steps(32, scales)
    np.testing.assert_array_equal(found.coarse[0].astype(np.float32) * found.multiples[0] * found.unit, scales)


@pytest.mark.parametrize("change", [
    lambda scales: scales + np.float32(1e-6), lambda scales: np.where(scales > 0, np.nan, scales),
    lambda scales: np.where(scales > 0, np.inf, scales), lambda scales: scales * np.float32(1e-30),
])  # fmt: skip
def test_other_scales_stay_as_they_are(change):
    weight = make("Q4_K")
    other = replace(weight, scales=change(weight.scales).astype(np.float32))
    with np.errstate(invalid="ignore"):
        assert find_steps(32, other.scales) is None
    got = pack(other).rows(torch.arange(40), torch.float32)
    torch.testing.assert_close(got, dequantize(other, torch.float32), rtol=0, atol=0, equal_nan=True)


def test_groups_that_are_not_of_256_inputs():
    assert find_steps(128, np.ones((3, 4), np.float32)) is None
    assert find_steps(32, np.ones((3, 12), np.float32)) is None


@pytest.mark.parametrize("steps", [(-1, False, 1.0, 0, 0), (8, False, 1.0, 0, 0), (8, True, 1.0, 64, 64)])
def test_native_code_refuses_what_it_cannot_trust(steps):
    codes, scales = np.zeros((4, 256), np.uint8), np.ones((4, 8), np.int8)
    call = (codes.ctypes.data, False, 4, 256, 256, 8, 32, scales.ctypes.data, 0, 0, 1, 128)
    with pytest.raises(ValueError, match=r"."):
        _native.Int8Weight(*call, steps)
    with pytest.raises(ValueError, match=r"."):
        _native.steps_of_scales(scales.ctypes.data, 4, 8, 3, scales.ctypes.data, 64)
