"""Codes, scales and minimums hold exactly the values of gguf's dequantisation, for every type taken apart here."""

import contextlib

import gguf
import numpy as np
import pytest

from modulm_quant_gguf.ggml_types import KNOWN, GGMLType, ggml_type
from modulm_quant_gguf.layouts import VectorLayout, unpack, unpack_vectors
from modulm_quant_gguf.scheme import LAYOUTS
from modulm_quant_gguf.values import DECODABLE

BY_NAME = {kind.name: kind for kind in KNOWN.values()}


def test_our_table_is_ggufs():
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = {number: tuple(kind[1:]) for number, kind in KNOWN.items()}
    assert {number: ours[number] for number in ours.keys() & theirs.keys()} == {
        number: theirs[number] for number in ours.keys() & theirs.keys()
    }
    for number, (name, block, size) in theirs.items():
        assert ggml_type(number) == GGMLType(number, name, block, size)


def test_what_we_say_can_be_decoded_is_what_gguf_decodes():
    decodable = []
    for kind in KNOWN.values():
        try:
            gguf.quants.dequantize(np.zeros((1, kind.size), np.uint8), gguf.GGMLQuantizationType(kind.number))
        except NotImplementedError:
            continue
        decodable.append(kind.name)
    assert set(decodable) | {"F64"} == set(DECODABLE)


def quantized(kind, rows, columns):
    """Random normal values where gguf can quantise them, and random blocks with finite scales."""
    rng = np.random.default_rng(kind.number)
    numbers = gguf.GGMLQuantizationType(kind.number)
    raw = rng.integers(0, 256, (rows, columns // kind.block * kind.size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        finite = np.isfinite(gguf.quants.dequantize(raw, numbers)).all(axis=1)
    yield raw[finite]
    with contextlib.suppress(NotImplementedError):
        yield gguf.quants.quantize(rng.standard_normal((rows, columns)).astype(np.float32), numbers)


def values(codes, scales, minimums, layout):
    if layout.bits <= 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    assert codes.max() < 2**layout.bits
    scales = scales.astype(np.float32).repeat(layout.group_size, axis=1)
    if layout.codebook:
        return scales * np.array(layout.codebook, np.float32)[codes]
    return scales * codes.astype(np.float32) + minimums.astype(np.float32).repeat(layout.group_size, axis=1)


def values_of_vectors(codes, signs, scales, codebook, group_size):
    numbers = codebook[codes].reshape(len(codes), -1)
    if signs.size:
        numbers = np.where(np.unpackbits(signs, axis=1, bitorder="little"), -numbers, numbers)
    return scales.repeat(group_size, axis=1) * numbers


@pytest.mark.parametrize("name", LAYOUTS)
def test_values_are_ggufs_bit_for_bit(name):
    kind, layout = BY_NAME[name], LAYOUTS[name]
    for raw in quantized(kind, 300, 2 * kind.block):
        assert len(raw) > 100
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind.number))
        if isinstance(layout, VectorLayout):
            book = layout.codebook(name)
            found = values_of_vectors(*unpack_vectors(raw, kind, layout), book, layout.group_size)
        else:
            found = values(*unpack(raw, kind, layout), layout)
        np.testing.assert_array_equal(found, expected)


def test_pieces_do_not_show(monkeypatch):
    kind, layout = BY_NAME["Q6_K"], LAYOUTS["Q6_K"]
    raw = next(quantized(kind, 50, 512))
    whole = unpack(raw, kind, layout)
    monkeypatch.setattr("modulm_quant_gguf.layouts._PIECE_ELEMENTS", 768)
    for part, expected in zip(unpack(raw, kind, layout), whole, strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize(("scale", "dtype"), [(1.5, np.float16), (600.0, np.float32)])
def test_minimums_beyond_float16_are_kept_as_float32(scale, dtype):
    raw = np.zeros((1, 34), np.uint8)
    raw[0, :2] = np.array([scale], "<f2").view(np.uint8)
    _, scales, minimums = unpack(raw, BY_NAME["Q8_0"], LAYOUTS["Q8_0"])
    assert scales.dtype == minimums.dtype == dtype
    assert minimums[0, 0] == -128 * scale
