"""Products with weights of 2 to 8 bits against float64, on every instruction set that runs here.

What a `fast` product must be is known: float64 arithmetic on activations that numpy has quantised by the rule in
`activation_rule.py`. So only float32's rounding is left between the two. Many tokens go by `tile_rule.py` on AMX.
"""

import numpy as np
import pytest
import torch
from activation_rule import quantized
from hypothesis import given, settings
from hypothesis import strategies as st
from tile_rule import FEW, FEWEST, assert_tiled, is_tiled

from modulm.interfaces.quantization import ChannelInt8, GroupedInt
from modulm.reference.dequantize import dequantize
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.packed_int8 import pack, supports

ISAS = [name for name in ("generic", "avx2", "avxvnni", "avx512", "amx", "neon") if _native.can_run(name)]
SHAPES = [  # out_features, in_features, group_size
    (1, 32, 32),
    (8, 16, 16),
    (13, 96, 16),
    (33, 48, 16),
    (31, 96, 48),
    (32, 128, 64),
    (40, 512, 128),
    (65, 576, 32),
    (50, 576, 576),
    (7, 100, 100),
    (9, 7, 7),
    (5, 1, 1),
]
TOKENS = [1, 2, 3, 4, 5, 6, 7, 12, 13, 25, 67]
BITS = [2, 3, 4, 5, 6, 7, 8]
STORED = [2, 3, 4, 5, 6, 8]
KINDS = ["minimums", "centred", "points", "wide", "wide centred", "wide points"]
CANARY = 12345.0


def grouped(bits, kind, out_features, in_features, group_size, seed=0):
    """A random weight; "wide" ones have float32 scales. Zero points are one for all ("centred") or one a group."""
    work = np.random.default_rng(seed)
    shape = (out_features, in_features // group_size)
    codes = work.integers(0, 1 << bits, (out_features, in_features), np.uint8)
    scales = (work.random(shape) + 0.5) * np.sign(work.standard_normal(shape)) / 64
    scales = scales.astype(np.float32 if "wide" in kind else np.float16)
    minimums = work.standard_normal(shape).astype(scales.dtype)
    if "centred" in kind:
        minimums = scales * -(1 << (bits - 1))
    if "points" in kind:
        minimums = -(scales.astype(np.float32) * work.integers(0, 1 << bits, shape, np.uint8).astype(np.float32))
    if bits <= 4:
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    common = {"out_features": out_features, "in_features": in_features, "group_size": group_size, "bits": bits}
    return GroupedInt(codes=codes, scales=scales, minimums=minimums, **common)


def channels(out_features, in_features, seed=0):
    work = np.random.default_rng(seed)
    codes = work.integers(-128, 128, (out_features, in_features), np.int8)
    scales = work.standard_normal(out_features, np.float32) / np.float32(64)
    return ChannelInt8(out_features=out_features, in_features=in_features, codes=codes, scales=scales)


def fits(bits, inputs):
    """Whether codes of few bits, two to a byte, fill whole bytes."""
    return bits > 4 or inputs % 2 == 0


def unit_of(weight):
    group = getattr(weight, "group_size", weight.in_features)
    return 16 if group % 32 == 16 and group != weight.in_features else 32


def activations(num_tokens, size, seed=0):
    """Random numbers, every eleventh input of every other token large."""
    x = np.random.default_rng(seed).standard_normal((num_tokens, size)).astype(np.float32)
    x[::2, ::11] *= np.float32(60.0)
    return x


def multiply(packed, x, isa, exact=False):
    """The native product into memory full of NaN between canaries."""
    count = len(x) * packed._out_features
    room = np.full(count + 128, np.nan, np.float32)
    room[:64] = room[-64:] = CANARY
    address = room.ctypes.data + 256
    packed._native.linear(x.ctypes.data, 0, x.shape[1], len(x), address, 0, isa, exact)
    assert (room[:64] == CANARY).all() and (room[-64:] == CANARY).all()
    return room[64:-64].reshape(len(x), -1)


def assert_fast(got, x, weight, isa):
    if is_tiled(isa, len(x), getattr(weight, "bits", 8)):
        assert_tiled(got, x, dequantize(weight, torch.float32).double().numpy(), terms=largest_terms(weight))
    else:
        assert_product(got, quantized(x, unit_of(weight)).values(x.shape[1]), weight)


def assert_product(got, values, weight):
    """Compare with float64. Scaled codes and minimums may cancel, so the error is held against terms, not their sum."""
    matrix = dequantize(weight, torch.float32).double().numpy()
    expected = values @ matrix.T
    bound = np.abs(values) @ largest_terms(weight).T
    assert np.isfinite(got).all()
    assert (np.abs(got - expected) <= 3e-6 * bound + 1e-30).all()
    assert np.linalg.norm(got - expected) <= 1e-5 * np.linalg.norm(bound)


def largest_terms(weight):
    if isinstance(weight, ChannelInt8):
        return dequantize(weight, torch.float32).double().abs().numpy()
    scales, minimums = (np.abs(part.astype(np.float64)) for part in (weight.scales, weight.minimums))
    return (scales * (1 << weight.bits) + minimums).repeat(weight.group_size, axis=1)


def check(weight, isa, counts):
    packed = pack(weight, "fast")
    for count in counts:
        x = activations(count, weight.in_features, count)
        assert_fast(multiply(packed, x, isa), x, weight, isa)
        assert_product(multiply(packed, x, isa, exact=True), x.astype(np.float64), weight)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", KINDS)
def test_grouped_weights_agree_with_float64(isa, shape, bits, kind):
    if fits(bits, shape[1]):
        check(grouped(bits, kind, *shape), isa, TOKENS if kind == "minimums" else [1, 5, 14])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_channels_agree_with_float64(isa, shape):
    check(channels(*shape[:2]), isa, TOKENS)


@settings(max_examples=60, deadline=None)
@given(
    out_features=st.integers(1, 140),
    groups=st.integers(1, 9),
    group_size=st.sampled_from([16, 32, 48, 64, 128]),
    count=st.integers(1, 67),
    bits=st.sampled_from(BITS),
    kind=st.sampled_from(KINDS),
    isa=st.sampled_from(ISAS),
    seed=st.integers(0, 1000),
)
def test_any_shape(out_features, groups, group_size, count, bits, kind, isa, seed):
    check(grouped(bits, kind, out_features, groups * group_size, group_size, seed), isa, [count])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", STORED)
def test_extremes_do_not_overflow(isa, bits):
    """All codes and activations at their limits, with every pair of signs: 16 bits must hold what they add up."""
    patterns = [np.full(256, 127), np.full(256, -127), np.tile([127, -127], 128)]
    apart = np.repeat([127 * 127, 127, 1], [4, 28, 224])  # one quad at the limit of two bytes
    patterns += [apart, -apart, apart * np.tile([1, -1], 128)]
    x = np.stack(2 * patterns)[: FEWEST - 1].astype(np.float32)  # as integers on AMX too
    assert np.abs(quantized(x, 32).high).max() == 126
    for code in (0, (1 << bits) - 1, 1 << (bits - 1)):
        weight = grouped(bits, "centred", 32, 256, 32)
        weight.codes.fill(code * 17 if bits <= 4 else code)
        assert_product(multiply(pack(weight, "fast"), x, isa), x.astype(np.float64), weight)
    signed = channels(32, 256)
    for code in (-128, 127, 0):
        signed.codes.fill(code)
        assert_product(multiply(pack(signed, "fast"), x, isa), x.astype(np.float64), signed)


@pytest.mark.parametrize("bits", STORED)
@pytest.mark.parametrize("kind", KINDS)
def test_wide_instruction_sets_give_the_same_bits(bits, kind):
    packed = pack(grouped(bits, kind, 70, 320, 32), "fast")
    x = torch.from_numpy(activations(29, 320))
    results = [packed.linear(x, isa) for isa in ISAS if isa.startswith("avx")]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("precision", ["fast", "exact"])
@pytest.mark.parametrize("bits", STORED)
def test_neither_threads_nor_company_change_a_result(isa, precision, bits):
    packed = pack(grouped(bits, "minimums", 300, 256, 32), precision)
    x = torch.from_numpy(activations(250, 256))
    threads = _native.num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            _native.set_num_threads(count)
            results.append(packed.linear(x, isa))
    finally:
        _native.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)
    size = FEW + 1 if precision == "fast" and is_tiled(isa, FEW + 1) else 1  # fewer tokens go another way
    alone = torch.cat([packed.linear(rows, isa) for rows in x[: 3 * size].split(size)])
    assert torch.equal(alone, results[0][: 3 * size])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group_size", [16, 32, 96])
def test_bytes_in_tiles_have_the_bits_of_one_token(isa, kind, group_size):
    packed = pack(grouped(8, kind, 77, 288, group_size), "fast")
    x = torch.from_numpy(activations(FEW, 288))
    alone = torch.cat([packed.linear(row, isa) for row in x.split(1)])
    for count in range(2, FEW + 1):
        assert torch.equal(packed.linear(x[:count], isa), alone[:count]), count


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_activations_of_each_type(isa, dtype):
    packed = pack(grouped(6, "centred", 45, 144, 16), "fast")
    x = torch.from_numpy(activations(9, 144)).to(dtype)
    got = packed.linear(x, isa)
    assert got.dtype == dtype
    assert torch.equal(got, packed.linear(x.float(), isa).to(dtype))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("count", [7, 37])
def test_activations_that_are_not_finite_show(isa, bad, count):
    packed = pack(grouped(8, "centred", 40, 96, 32), "fast")
    x = torch.from_numpy(activations(count, 96))
    x[3, 50] = bad
    got = packed.linear(x, isa)
    assert not torch.isfinite(got[3]).any()
    assert torch.isfinite(got[torch.arange(count) != 3]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_those_of_the_matrix(dtype, shape):
    weights = [grouped(bits, kind, *shape) for bits in BITS for kind in KINDS if fits(bits, shape[1])]
    weights.append(channels(*shape[:2]))
    index = torch.tensor([shape[0] - 1, 0, shape[0] // 2, 0])
    for weight in weights:
        assert torch.equal(pack(weight, "fast").rows(index, dtype), dequantize(weight, dtype, index))


def test_scales_and_minimums_of_two_types():
    weight = grouped(8, "minimums", 20, 64, 32)
    mixed = GroupedInt(**{**vars(weight), "minimums": weight.minimums.astype(np.float32) + np.float32(1e-4)})
    check(mixed, "", [3])
    index = torch.arange(20)
    assert torch.equal(pack(mixed, "fast").rows(index, torch.float32), dequantize(mixed, torch.float32))


@pytest.mark.parametrize("change", [np.asfortranarray, lambda array: np.repeat(array, 2, 0)[::2]])
def test_arrays_that_are_not_contiguous(change):
    for weight in (grouped(8, "minimums", 20, 64, 32), channels(20, 64)):
        arrays = {name: change(value) for name, value in vars(weight).items() if isinstance(value, np.ndarray)}
        index, strided = torch.arange(20), type(weight)(**vars(weight) | arrays)
        want = dequantize(weight, torch.float32)
        assert torch.equal(pack(strided, "fast").rows(index, torch.float32), want)


def test_memory():
    codes, scales = 64 * 256, 64 * 8 * 2
    assert pack(grouped(8, "centred", 64, 256, 32)).size_bytes == codes + scales
    assert pack(grouped(8, "minimums", 64, 256, 32)).size_bytes == codes + 2 * scales
    assert pack(grouped(6, "centred", 64, 256, 32)).size_bytes == codes * 6 // 8 + scales
    assert pack(grouped(5, "wide", 64, 256, 32)).size_bytes == codes * 5 // 8 + 4 * scales
    for bits in (2, 3):  # as GPTQ's files, where zero points take a byte at most
        assert pack(grouped(bits, "centred", 64, 256, 32)).size_bytes == codes * bits // 8 + scales
        assert pack(grouped(bits, "points", 64, 256, 32)).size_bytes == codes * bits // 8 + scales + scales // 2
    assert pack(channels(64, 256)).size_bytes == codes + 64 * 4


def test_one_zero_point_of_any_value_takes_no_memory():
    """As in GGUF's TQ2_0: codes 0, 1 and 2 stand for -1, 0 and 1."""
    weight = grouped(2, "centred", 64, 256, 256)
    ternary = GroupedInt(**{**vars(weight), "minimums": -weight.scales})
    assert pack(ternary).size_bytes == 64 * (64 + 2)
    check(ternary, "", [1, 7])
    index = torch.arange(64)
    assert torch.equal(pack(ternary).rows(index, torch.float32), dequantize(ternary, torch.float32))


def test_scales_that_fit_float16_take_no_more():
    weight = grouped(8, "centred", 64, 256, 32)
    wide = GroupedInt(**{**vars(weight), "scales": weight.scales.astype(np.float32)})
    assert pack(wide).size_bytes == pack(weight).size_bytes


def test_precision(monkeypatch):
    weight = grouped(8, "minimums", 20, 64, 32)
    x = torch.from_numpy(activations(3, 64))
    fast, exact = (pack(weight, precision).linear(x) for precision in ("fast", "exact"))
    assert not torch.equal(fast, exact)
    monkeypatch.setenv("MODULM_KERNEL_PRECISION", "exact")
    assert torch.equal(pack(weight).linear(x), exact)
    monkeypatch.delenv("MODULM_KERNEL_PRECISION")
    assert torch.equal(pack(weight).linear(x), fast)
    with pytest.raises(ValueError, match="'exakt'"):
        pack(weight, "exakt")


def test_what_is_refused():
    packed = pack(channels(20, 48), "fast")
    with pytest.raises(ValueError, match=r"\[num_tokens, 48\]"):
        packed.linear(torch.zeros(3, 47))
    with pytest.raises(TypeError, match="float64"):
        packed.linear(torch.zeros(3, 48, dtype=torch.float64))
    with pytest.raises(IndexError, match="Row 20"):
        packed.rows(torch.tensor([0, 20]), torch.float32)
    assert packed.linear(torch.empty(0, 48)).shape == (0, 20)


def test_weights_that_are_refused():
    good = vars(grouped(6, "minimums", 20, 64, 32))
    assert supports(GroupedInt(**good))
    assert not supports(GroupedInt(**{**good, "bits": 9}))
    assert not supports(GroupedInt(**{**good, "bits": 2, "in_features": 63, "group_size": 63}))
    assert not supports(GroupedInt(**{**good, "group_size": 8}))
    wrong = {
        "codes": [np.zeros((20, 63), np.uint8), np.full((20, 64), 64, np.uint8)],
        "scales": [np.zeros((20, 1), np.float32), np.zeros(40, np.float32)],
        "minimums": [np.zeros((2, 20), np.float32)],
        "group_size": [48, 64],
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=r"."):
                pack(GroupedInt(**{**good, name: value}), "fast")
    for name, value in [("codes", np.zeros((20, 64), np.float32)), ("scales", np.zeros((20, 2))),
                        ("minimums", torch.zeros(20, 2)), ("bits", 9)]:  # fmt: skip
        with pytest.raises(TypeError):
            pack(GroupedInt(**{**good, name: value}), "fast")


def test_native_code_refuses_what_it_cannot_trust():
    codes, scales = torch.zeros(4, 64, dtype=torch.uint8), torch.ones(4, 2)
    x, out, index = torch.zeros(2, 64), torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)
    good = (codes.data_ptr(), False, 4, 64, 64, 8, 32, scales.data_ptr(), scales.data_ptr(), 0, 2, 128)
    for position, value in [(0, 0), (1, 5), (2, 0), (2, -1), (3, 0), (3, 63), (4, 63), (5, 7), (6, 0), (6, -32), (6, 8),
                            (6, 48), (7, 0), (7, scales.data_ptr() + 2), (8, 0), (9, 2), (9, 3), (10, 4), (10, -1),
                            (11, -1), (11, 256)]:  # fmt: skip
        with pytest.raises((ValueError, TypeError)):
            _native.Int8Weight(*good[:position], value, *good[position + 1 :])
    weight = _native.Int8Weight(*good)
    call = (x.data_ptr(), 0, 64, 2, out.data_ptr(), 0)
    weight.linear(*call)
    for position, value in [(0, 0), (0, x.data_ptr() + 2), (1, 3), (2, 63), (2, 1 << 62), (3, 0), (3, -1), (3, 1 << 60),
                            (4, 0), (4, out.data_ptr() + 1), (5, 9)]:  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            weight.linear(*call[:position], value, *call[position + 1 :])
    for position, value in [(0, 0), (0, index.data_ptr() + 4), (1, 0), (1, -1), (1, 1 << 60), (2, 0), (3, 3)]:
        look_up = (index.data_ptr(), 2, out.data_ptr(), 0)
        with pytest.raises(ValueError, match=r"."):
            weight.rows(*look_up[:position], value, *look_up[position + 1 :])
