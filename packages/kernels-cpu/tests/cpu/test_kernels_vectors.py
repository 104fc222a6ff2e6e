"""Vectors of a codebook: rows exactly, and products, small and written out, on every instruction set."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from modulm.errors import ConfigError
from modulm.interfaces.quantization import VectorCodebook
from modulm_kernels_cpu import _native, packed_vectors

ISAS = [name for name in ("generic", "avx2", "avxvnni", "avx512", "amx", "neon") if _native.can_run(name)]
FORMS = {  # vectors, length, signs, shift (of 8 or 32 inputs), group size
    "IQ2_XXS": (256, 8, 7, None, 32),
    "IQ2_XS": (512, 8, 7, None, 16),
    "IQ2_S": (1024, 8, 8, None, 16),
    "IQ3_XXS": (256, 4, 7, None, 32),
    "IQ3_S": (512, 4, 8, None, 32),
    "IQ1_S": (2048, 8, 0, 32, 32),
    "IQ1_M": (2048, 8, 0, 8, 16),
    "few": (30, 4, 0, None, 32),
}


def make(name, rows=45, inputs=512, rises=False):
    """A random weight of that form; values are eighths."""
    count, length, signs, shift, group = FORMS[name]
    work = np.random.default_rng(len(name))
    values = np.array([-0.875, 0.125, 1.125]) if shift else np.array([1.0, 3.0, 5.0])
    book = values[work.integers(0, 3, (count, length))].astype(np.float32)
    codes = work.integers(0, count, (rows, inputs // length)).astype(np.uint16)
    if shift:
        book = np.concatenate([book - 0.25, book] if rises else [book, book - 0.25])
        bits = work.integers(0, 2, (rows, inputs // shift)).repeat(shift // 8, axis=1)
        codes |= (bits * count).astype(np.uint16)
    stored = work.integers(0, 256, (rows, inputs // 8 if signs else 0)).astype(np.uint8)
    if signs == 7:
        odd = np.unpackbits(stored[..., None], axis=-1).sum(axis=-1) % 2
        stored ^= (odd << 7).astype(np.uint8)
    multiples = 2 * work.integers(0, 16, (rows, inputs // group)) + 1
    coarse = work.standard_normal((rows, -(-inputs // 256))).astype(np.float16).astype(np.float32)
    scales = multiples.astype(np.float32) * coarse.repeat(256 // group, axis=1)[:, : inputs // group] / 64
    shape = {"out_features": rows, "in_features": inputs, "group_size": group}
    return VectorCodebook(codes=codes, signs=stored, scales=scales.astype(np.float32), codebook=book, **shape)


def numbers(weight):
    """The matrix by the kind's own words."""
    values = weight.codebook[weight.codes].reshape(weight.out_features, -1)
    if weight.signs.size:
        values = np.where(np.unpackbits(weight.signs, axis=1, bitorder="little"), -values, values)
    return weight.scales.repeat(weight.group_size, axis=1) * values


def check(weight, isa=""):
    expected = numbers(weight)
    packed = packed_vectors.pack(weight)
    rows = packed.rows(torch.arange(weight.out_features), torch.float32).numpy()
    np.testing.assert_array_equal(rows, expected)
    for tokens in (1, 3, 20):
        x = np.random.default_rng(tokens).standard_normal((tokens, weight.in_features)).astype(np.float32)
        x[:, 7] *= 40  # set apart from its group: see quantize_activations.hpp
        size = np.abs(x).astype(np.float64) @ np.abs(expected).astype(np.float64).T
        wanted = x.astype(np.float64) @ expected.astype(np.float64).T
        assert (np.abs(packed.linear(torch.from_numpy(x), isa).numpy() - wanted) <= 6e-3 * size).all()
        exact = packed_vectors.pack(weight, "exact").linear(torch.from_numpy(x), isa).numpy()
        assert (np.abs(exact - wanted) <= 3e-6 * size).all()


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setenv("MODULM_KERNEL_MEMORY", "small")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMS)
def test_vectors_on_every_instruction_set(name, isa):
    check(make(name), isa)


@pytest.mark.parametrize("inputs", [64, 96, 288])
def test_inputs_need_not_fill_a_span_of_scales(inputs):
    check(make("IQ2_XXS", inputs=inputs))
    check(make("IQ1_M", inputs=inputs))


def test_a_list_may_begin_with_its_lower_half():
    check(make("IQ1_S", rises=True))


def test_scales_that_are_no_multiples_stay_numbers():
    weight = make("IQ3_S")
    scales = np.random.default_rng(1).standard_normal(weight.scales.shape).astype(np.float32)
    check(replace(weight, scales=scales))
    check(replace(weight, scales=scales.astype(np.float16).astype(np.float32)))
    check(replace(weight, scales=np.zeros_like(scales)))


@pytest.mark.parametrize("name", ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"])
def test_written_out_they_are_the_same_and_larger(name, monkeypatch):
    weight = make(name, inputs=1024)
    small = packed_vectors.pack(weight).size_bytes
    monkeypatch.setenv("MODULM_KERNEL_MEMORY", "fast")
    check(weight)
    assert packed_vectors.pack(weight).size_bytes > small


def test_what_is_not_served_is_said():
    weight = make("IQ2_XXS")
    assert "no multiple of 8" in packed_vectors.supports(replace(weight, in_features=12)).reason
    odd = replace(weight, codebook=weight.codebook * np.float32(0.3))
    assert "power of two" in packed_vectors.supports(odd).reason
    many = np.random.default_rng(0).integers(1, 9, (4096, 8)).astype(np.float32)
    assert "up to 2048 vectors" in packed_vectors.supports(replace(weight, codebook=many)).reason
    with pytest.raises(ValueError, match="There is a code .*; the codebook has 9 vectors"):
        packed_vectors.pack(replace(weight, codebook=weight.codebook[:9]))


def test_memory_is_fast_or_small(monkeypatch):
    monkeypatch.setenv("MODULM_KERNEL_MEMORY", "tiny")
    with pytest.raises(ConfigError, match=r"MODULM_KERNEL_MEMORY='tiny' is unknown.*'fast'.*'small'"):
        packed_vectors.supports(make("IQ2_XXS"))
