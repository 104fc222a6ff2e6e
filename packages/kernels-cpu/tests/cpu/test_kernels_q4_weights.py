"""Packed 4-bit weights as layers see them: types, strides, refusals, size; and how codebooks become whole steps."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch

from modulm.interfaces.kernels import PackedWeight
from modulm.interfaces.quantization import BlockFloat4, ChannelInt8, Codebook4, GroupedInt
from modulm.reference.dequantize import dequantize
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.packed_q4 import pack, steps_of, supports

ISAS = [name for name in ("generic", "avx2", "avxvnni", "avx512", "neon") if _native.can_run(name)]


def grouped(out_features=40, in_features=96, group_size=32, bits=4, dtype=np.float16):
    work = np.random.default_rng(0)
    groups = (out_features, in_features // group_size)
    return GroupedInt(
        out_features=out_features,
        in_features=in_features,
        bits=bits,
        group_size=group_size,
        codes=work.integers(0, 256, (out_features, in_features // 2), np.uint8),
        scales=(work.random(groups) + 0.1).astype(dtype),
        minimums=(work.random(groups) - 5).astype(dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_results_have_the_dtype_of_activations(dtype, precision):
    packed: PackedWeight = pack(grouped(), precision)
    x = torch.randn(7, 96).to(dtype)
    got = packed.linear(x)
    assert got.dtype == dtype and got.shape == (7, 40)
    torch.testing.assert_close(got, packed.linear(x.float()).to(dtype), rtol=0, atol=0)


def test_no_tokens():
    assert pack(grouped()).linear(torch.empty(0, 96)).shape == (0, 40)


def test_rows_of_no_index():
    assert pack(grouped()).rows(torch.empty(0, dtype=torch.int64), torch.float32).shape == (0, 96)


def test_activations_of_any_stride():
    packed = pack(grouped())
    wide = torch.randn(9, 200)
    expected = packed.linear(wide[:, 50:146].clone())
    assert torch.equal(packed.linear(wide[:, 50:146]), expected)
    assert torch.equal(packed.linear(wide.T.contiguous().T[:, 50:146]), expected)
    assert torch.equal(packed.linear(wide[2:3, 50:146].expand(4, 96)), expected[2:3].expand(4, 40))


@pytest.mark.parametrize("index", [[40], [-1], [0, 1 << 40]])
def test_rows_outside_of_the_weight(index):
    with pytest.raises(IndexError):
        pack(grouped()).rows(torch.tensor(index), torch.float32)


def test_activations_of_another_width():
    with pytest.raises(ValueError, match="96"):
        pack(grouped()).linear(torch.randn(2, 64))


def test_float16_holds_scales_where_it_can():
    half, single = grouped(32, 256), grouped(32, 256, dtype=np.float32)
    same = replace(half, scales=half.scales.astype(np.float32), minimums=half.minimums.astype(np.float32))
    numbers = 32 * 256
    assert pack(half).size_bytes == pack(same).size_bytes == numbers // 2 + numbers // 32 * 4
    assert pack(single).size_bytes == numbers // 2 + numbers // 32 * 8


def test_one_zero_point_needs_no_minimums():
    weight = grouped(32, 256)
    plain = replace(weight, minimums=-8 * weight.scales)
    assert pack(plain).size_bytes == 32 * 256 // 2 + 32 * 256 // 32 * 2
    nearly = replace(weight, minimums=plain.minimums.copy())
    nearly.minimums[3, 2] += 1
    assert pack(nearly).size_bytes == pack(weight).size_bytes
    for one in (plain, nearly):
        assert torch.equal(pack(one).rows(torch.arange(32), torch.float32), dequantize(one, torch.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("group_size", "dtype"), [(32, np.float16), (128, np.float16), (16, np.float32)])
def test_zero_points_take_a_byte_each(group_size, dtype, isa):
    """AWQ, GPTQ: minimums that are whole multiples of the scale, in float32, as float16 could not hold them."""
    work = np.random.default_rng(3)
    weight = grouped(40, 256, group_size, dtype=dtype)
    scales = work.random(weight.scales.shape).astype(dtype)
    scales[5, 0] = 0
    minimums = -(scales.astype(np.float32) * work.integers(0, 16, scales.shape).astype(np.float32))
    weight = replace(weight, scales=scales, minimums=minimums)
    lanes = 16 if isa == "avx512" else 8
    rows = -(-40 // lanes) * lanes
    assert pack(weight, isa=isa).size_bytes == rows * (128 + 256 // group_size * (scales.itemsize + 1))
    index, x = torch.arange(40), torch.randn(9, 256)
    assert torch.equal(pack(weight, isa=isa).rows(index, torch.float32), dequantize(weight, torch.float32))
    matrix = dequantize(weight, torch.float32).double()
    size = x.double().abs() @ matrix.abs().T
    assert ((pack(weight, "exact", isa).linear(x, isa) - x.double() @ matrix.T).abs() <= 2e-6 * size).all()
    assert ((pack(weight, "fast", isa).linear(x, isa) - x.double() @ matrix.T).abs() <= 2e-2 * size).all()
    off = replace(weight, minimums=minimums + np.where(np.arange(40)[:, None] == 7, np.float32(0.01), np.float32(0)))
    assert pack(off, isa=isa).size_bytes == rows * (128 + 256 // group_size * 8)
    assert torch.equal(pack(off, isa=isa).rows(index, torch.float32), dequantize(off, torch.float32))


def test_all_scales_zero():
    weight = grouped()
    empty = replace(weight, scales=np.zeros_like(weight.scales), minimums=np.zeros_like(weight.minimums))
    assert (pack(empty).linear(torch.randn(3, 96)) == 0).all()


def locked(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def test_arrays_that_are_not_as_native_code_wants_them(at_odd_address):
    weight, index = grouped(), torch.arange(40)
    want = pack(weight).rows(index, torch.float32)
    for change in (np.asfortranarray, at_odd_address, locked, lambda array: np.repeat(array, 2, 1)[:, ::2]):
        arrays = {name: change(getattr(weight, name)) for name in ("codes", "scales", "minimums")}
        assert torch.equal(pack(replace(weight, **arrays)).rows(index, torch.float32), want)


@pytest.mark.parametrize(("name", "change"), [
    ("codes", torch.from_numpy), ("codes", lambda codes: codes.view(np.int8)), ("scales", lambda part: part.tolist()),
    ("scales", lambda part: part.astype(">f4")), ("minimums", lambda part: part.astype(np.float64)),
])  # fmt: skip
def test_arrays_of_a_wrong_type(name, change):
    weight = grouped()
    with pytest.raises(TypeError, match=name):
        pack(replace(weight, **{name: change(getattr(weight, name))}))


@pytest.mark.parametrize(("change", "message"), [
    ({"bits": 5}, "5 bits"),
    ({"bits": 3}, "3 bits"),
    ({"in_features": 95}, "whole number of bytes"),
    ({"group_size": 24}, "group size 24"),
])  # fmt: skip
def test_what_is_refused(change, message):
    answer = supports(replace(grouped(), **change))
    assert not answer and message in answer.reason


def test_kinds_that_are_not_of_four_bits():
    other = ChannelInt8(out_features=2, in_features=4, codes=np.zeros((2, 4), np.int8), scales=np.ones(2, np.float32))
    assert not supports(other)
    with pytest.raises(TypeError, match="ChannelInt8"):
        pack(other)


@pytest.mark.parametrize("field", ["codes", "scales", "minimums"])
def test_parts_of_a_wrong_shape(field):
    weight = grouped()
    with pytest.raises(ValueError, match=field):
        pack(replace(weight, **{field: getattr(weight, field)[:, :-1]}))


@pytest.mark.parametrize(("arguments", "message"), [
    ((0, 0, 96, 1, 64, 0), "x is a null"),
    ((64, 0, 96, 1, 0, 0), "out is a null"),
    ((64, 7, 96, 1, 64, 0), "x has no known type"),
    ((64, 0, 96, 1, 64, -1), "out has no known type"),
    ((64, 0, 95, 2, 64, 0), "overlap"),
    ((64, 0, 96, -1, 64, 0), "at least one token"),
    ((64, 0, 96, 0, 64, 0), "at least one token"),
    ((66, 0, 96, 1, 64, 0), "not aligned"),
    ((64, 0, 1 << 50, 1 << 30, 64, 0), "overlap"),
    ((64, 0, 96, 1, 64, 0, "sse9"), "another instruction set"),
])  # fmt: skip
def test_native_code_refuses_what_it_cannot_trust(arguments, message):
    with pytest.raises(ValueError, match=message):
        pack(grouped())._native.linear(*arguments)


@pytest.mark.parametrize(("change", "message"), [
    ({"group_size": 0}, "must divide"),
    ({"group_size": 5}, "must divide"),
    ({"group_size": 8}, "multiple of 16"),
    ({"offset": 16}, "must be a code"),
    ({"isa": "sse9"}, "sse9"),
    ({"scale_type": 4}, "scale_type is unknown"),
    ({"scale_type": -1}, "scale_type is unknown"),
    ({"scale_type": 2, "minimums": np.ones((3, 2), np.float32)}, "16 or 32 bits"),
    ({"scales": np.ones((3, 3), np.float32)}, "scales must be"),
    ({"scales": np.ones((3, 2))}, "float32 or float16"),
    ({"minimums": np.ones((3, 1), np.float32)}, "shape of scales"),
    ({"minimums": np.ones((3, 2), np.float16)}, "type of scales"),
    ({"zero_points": np.ones((3, 1), np.uint8)}, "shape of scales"),
    ({"zero_points": np.ones((3, 2), np.uint8), "minimums": np.ones((3, 2), np.float32)}, "not both"),
])  # fmt: skip
def test_native_packing_refuses_what_it_cannot_trust(change, message):
    arguments = {
        "codes": np.zeros((3, 32), np.uint8), "scales": np.ones((3, 2), np.float32), "minimums": None,
        "zero_points": None, "group_size": 32, "offset": 8, "scale_type": 0, "exact": False,
    }  # fmt: skip
    _native.Q4Weight.grouped(**arguments)
    with pytest.raises(ValueError, match=message):
        _native.Q4Weight.grouped(**(arguments | change))


def test_steps_of_codebooks():
    whole = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
    assert steps_of([float(value) for value in whole]) == (whole, 1.0, 0.0)
    e2m1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert steps_of(e2m1) == ([0, 1, 2, 3, 4, 6, 8, 12], 0.5, 0.0)
    assert steps_of([0.0] * 16)[0] == [0] * 16


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_codebooks_that_are_not_finite_stay_in_float32(value):
    codebook = np.linspace(-1, 1, 16, dtype=np.float32)
    codebook[3] = value
    weight = Codebook4(
        out_features=8, in_features=32, group_size=32, codes=np.full((8, 16), 0x33, np.uint8),
        scales=np.ones((8, 1), np.float32), codebook=codebook,
    )  # fmt: skip
    assert not pack(weight).linear(torch.ones(1, 32)).isfinite().any()


@pytest.mark.parametrize(("scales", "scale_bytes"), [
    (np.arange(64, 80, dtype=np.uint8).reshape(8, 2), 1),
    (np.arange(239, 255, dtype=np.uint8).reshape(8, 2), 1),
    (np.arange(16, dtype=np.uint8).reshape(8, 2), 4),
    (np.arange(16).astype(np.uint8).view(ml_dtypes.float8_e4m3fn).reshape(8, 2), 1),
    (np.full((8, 2), -0.375, ml_dtypes.float8_e4m3fn), 2),
    (np.full((8, 2), 1.0625, np.float32), 2),
    (np.full((8, 2), 1e-5, np.float32), 4),
])  # fmt: skip
@pytest.mark.parametrize("isa", ISAS)
def test_scales_take_a_byte_where_that_is_exact(isa, scales, scale_bytes):
    """As in the files: MXFP4 has powers of two, NVFP4 numbers of e4m3. One block has 8 or 16 rows."""
    codes = np.arange(8 * 16, dtype=np.uint8).reshape(8, 16)
    weight = BlockFloat4(out_features=8, in_features=32, group_size=16, codes=codes, scales=scales)
    packed = pack(weight, isa=isa)
    lanes = 16 if isa == "avx512" else 8
    assert packed.size_bytes == lanes * (16 + 2 * scale_bytes)
    assert torch.equal(packed.rows(torch.arange(8), torch.float32), dequantize(weight, torch.float32))


@pytest.mark.parametrize("scales", [
    np.full((8, 2), 0.375, np.float32),
    np.arange(239, 255, dtype=np.uint8).reshape(8, 2),
    np.arange(16, dtype=np.uint8).reshape(8, 2),
    np.full((8, 2), 0.375, ml_dtypes.float8_e4m3fn),
    np.full((8, 2), 0.375, ml_dtypes.bfloat16),
    np.arange(16).astype(np.uint8).view(ml_dtypes.float8_e4m3fn).reshape(8, 2),
    np.arange(110, 126).astype(np.uint8).view(ml_dtypes.float8_e4m3fn).reshape(8, 2),
    np.full((8, 2), -0.375, ml_dtypes.float8_e4m3fn),
])  # fmt: skip
def test_block_floats_with_scales_of_any_type(scales):
    codes = np.arange(8 * 16, dtype=np.uint8).reshape(8, 16)
    weight = BlockFloat4(out_features=8, in_features=32, group_size=16, codes=codes, scales=scales)
    index = torch.arange(8)
    assert torch.equal(pack(weight).rows(index, torch.float32), dequantize(weight, torch.float32))
