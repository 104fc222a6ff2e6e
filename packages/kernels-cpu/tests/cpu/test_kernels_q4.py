"""Products with 4-bit weights against float64, on every instruction set that runs here.

What a `fast` product must be is known exactly: float64 arithmetic on activations that numpy has quantised by the rule
in `activation_rule.py`. So only float32's rounding is left between the two. Many tokens go by `tile_rule.py` on AMX.
"""

import ml_dtypes
import numpy as np
import pytest
import torch
from activation_rule import quantized
from hypothesis import given, settings
from hypothesis import strategies as st
from tile_rule import FEW, FEWEST, assert_tiled, is_tiled

from modulm.interfaces.quantization import BlockFloat4, Codebook4, GroupedInt
from modulm.reference.dequantize import dequantize
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.packed_q4 import pack, steps_of

ISAS = [name for name in ("generic", "avx2", "avxvnni", "avx512", "amx", "neon") if _native.can_run(name)]
EPSILON = 2.0**-24
IQ4_NL = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
NF4 = [
    -1.0, -0.69619280, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.07958030, 0.16093020, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1.0,
]  # fmt: skip
UNEVEN = [-1.0, -0.6937, -0.5091, -0.3713, -0.2747, -0.1931, -0.1277, -0.0013, 0.0551, 0.1117, 0.1831, 0.2797,
          0.4253, 0.5519, 0.7489, 0.9367]  # fmt: skip
E2M1 = [0.003 * sign * value for sign in (1, -1) for value in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
SHAPES = [  # out_features, in_features, group_size
    (1, 32, 32),
    (8, 64, 32),
    (33, 96, 32),
    (13, 96, 16),
    (50, 144, 48),
    (16, 128, 64),
    (17, 256, 128),
    (9, 512, 256),
    (31, 576, 576),
    (7, 100, 100),
    (20, 36, 36),
    (5, 2, 2),
]
KINDS = ["minimums", "wide", "offset", "codebook", "nf4", "uneven", "block", "nvfp4"]


def make(kind, out_features, in_features, group_size, seed=0):
    """A random weight. "wide" has scales that float16 cannot hold, "uneven" a codebook that steps only come near."""
    work = np.random.default_rng(seed)
    groups = (out_features, in_features // group_size)
    codes = work.integers(0, 256, (out_features, in_features // 2), np.uint8)
    scales = (work.random(groups, np.float32) * 0.1 + np.float32(0.01)) * np.sign(
        work.standard_normal(groups, np.float32)
    )
    minimums = work.standard_normal(groups, np.float32) * np.float32(0.1) - np.float32(0.5)
    common = {"out_features": out_features, "in_features": in_features, "group_size": group_size, "codes": codes}
    if kind == "wide":
        return GroupedInt(bits=4, scales=scales, minimums=minimums, **common)
    scales = scales.astype(np.float16)
    if kind == "minimums":
        return GroupedInt(bits=4, scales=scales, minimums=minimums.astype(np.float16), **common)
    if kind == "offset":
        return GroupedInt(bits=4, scales=scales, minimums=-8 * scales, **common)
    if kind == "block":
        return BlockFloat4(scales=work.integers(118, 126, groups, np.uint8), **common)
    if kind == "nvfp4":
        scales = (np.abs(scales) * 100).astype(ml_dtypes.float8_e4m3fn).astype(np.float16)
    codebook = {"codebook": IQ4_NL, "nf4": NF4, "uneven": UNEVEN, "nvfp4": E2M1}[kind]
    return Codebook4(scales=scales, codebook=np.array(codebook, np.float32), **common)


def unit_of(weight):
    return 16 if weight.group_size % 32 == 16 else 32


def matrix(weight):
    """The weight in float64, from its float32 parts."""
    return dequantize(weight, torch.float32).double().numpy()


def matrix_in_steps(weight):
    """The weight as the integer path has it: codebooks in whole steps."""
    if not isinstance(weight, Codebook4):
        return matrix(weight)
    steps, size, _ = steps_of(weight.codebook.tolist())
    table = np.array(steps, np.float64) * float(np.float32(size))
    codes = np.stack((weight.codes & 15, weight.codes >> 4), -1).reshape(weight.out_features, -1)
    return table[codes] * weight.scales.astype(np.float64).repeat(weight.group_size, axis=1)


def activations(num_tokens, size, seed=0):
    """Random numbers; some inputs of some tokens are large, up to 2,000 times the others."""
    work = np.random.default_rng(seed)
    x = work.standard_normal((num_tokens, size)) * np.exp(work.standard_normal((num_tokens, 1)))
    x[::2] *= np.where(work.random((1, size)) < 0.03, 3.0 ** work.uniform(0, 7, (1, size)), 1.0)
    return x.astype(np.float32)


def multiply(packed, x, out_features, margin=64):
    """The native product into memory full of NaN between canaries."""
    room = np.full(len(x) * out_features + 2 * margin, np.nan, np.float32)
    room[:margin] = room[-margin:] = 12345.0
    packed._native.linear(x.ctypes.data, 0, x.shape[1], len(x), room.ctypes.data + 4 * margin, 0)
    assert (room[:margin] == 12345.0).all() and (room[-margin:] == 12345.0).all()
    return room[margin:-margin].reshape(len(x), out_features)


def largest_terms(weight):
    """Codes and minimum may cancel: terms are larger than their sum."""
    scales = weight.scales if weight.scales.dtype != np.uint8 else 2.0 ** (weight.scales.astype(np.float64) - 127)
    term = 15.0 if isinstance(weight, GroupedInt) else 6.0 if isinstance(weight, BlockFloat4) else weight.codebook.max()
    return np.repeat(np.abs(scales.astype(np.float64)) * float(term), weight.group_size, 1)


def assert_fast(got, x, weight, isa, are_exact=False):
    """Compare with float64 on activations as they are rounded."""
    if is_tiled(isa, len(x)):
        terms = largest_terms(weight)
        if len(x) <= FEW and isinstance(weight, GroupedInt) and unit_of(weight) == 32:
            are_exact, terms = True, terms * ((128 + 15) / 15)  # 128 is added to codes, and taken away from sums
        assert_tiled(got, x, matrix(weight), terms=terms, are_exact=are_exact)
        return
    values = quantized(x, unit_of(weight)).values(x.shape[1])
    expected = values @ matrix_in_steps(weight).T
    terms = np.abs(values) @ largest_terms(weight).T
    assert (np.abs(got - expected) <= EPSILON * (16 * terms + 64 * np.abs(expected)) + 1e-30).all()


def assert_close(got, x, weight, epsilons):
    """Compare with float64, allowing for float32's rounding of every term."""
    expected = x @ weight.T
    allowed = epsilons * EPSILON * (np.abs(x) @ np.abs(weight).T) + 1e-30
    assert (np.abs(got - expected) <= allowed).all(), (np.abs(got - expected) / allowed).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("size", [200, 5, 576])
def test_activations_are_quantised_bit_for_bit(isa, group, size):
    x = activations(13, size)
    x[3] = 0.0
    x[4, : size // 5] = 1e-38
    x[5, 2] = 1e30
    x[6, 3] = -1e4
    x[7] = 0.0
    x[7, 4] = 2.0  # a quad alone
    x[8, :2] = 500.0, -500.0
    x[9], x[9, :5:4] = 1.0, 500.0  # two quads with one magnitude
    x[10] = 1e38
    groups = -(-size // group)
    codes, high = np.full((2, 13, groups * group), 99, np.int8)
    scales, sums = np.full((2, 13, groups), np.nan, np.float32)
    code_sums = np.full((13, groups), 99, np.int32)
    _native.quantize_activations(x, codes, high, scales, sums, code_sums, group, isa)
    expected = quantized(x, group)
    codes, high = codes.reshape(13, groups, group), high.reshape(13, groups, group)
    np.testing.assert_array_equal(high, expected.high)
    np.testing.assert_array_equal(codes + 128 * high.astype(np.int32), expected.codes)
    np.testing.assert_array_equal(scales, expected.scales)
    np.testing.assert_array_equal(code_sums, codes.sum(-1, dtype=np.int32))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(sums, expected.scales * expected.codes.sum(-1).astype(np.float32))
    assert (np.abs(codes) <= 127).all() and (np.abs(high) <= 126).all()
    has_high = high.any((-1, -2))
    assert has_high[[5, 6, 7, 8]].all() or size == 5
    assert not has_high[9] or size == 576


@pytest.mark.parametrize("isa", ISAS)
def test_a_large_input_leaves_the_others_their_bits(isa):
    weight = make("minimums", 64, 576, 32)
    x = np.random.default_rng(0).standard_normal((9, 576)).astype(np.float32)
    x[:, 100] = 0.0
    expected = x.astype(np.float64) @ matrix(weight).T
    x[:, 100] = 500.0
    got = multiply(pack(weight, "fast", isa), x, 64) - 500.0 * matrix(weight)[:, 100]
    assert np.linalg.norm(got - expected) < 0.01 * np.linalg.norm(expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_fast_is_float64_on_quantised_activations(isa, kind, shape):
    weight = make(kind, *shape)
    packed = pack(weight, "fast", isa)
    for num_tokens in (1, 2, 3, 7, 12, 21, 67):
        x = activations(num_tokens, shape[1], seed=num_tokens)
        got = multiply(packed, x, shape[0])
        assert_fast(got, x, weight, isa, kind in ("block", "nvfp4"))


@pytest.mark.parametrize("isa", ISAS)
def test_what_a_product_leaves_in_a_threads_room_is_not_seen(isa):
    """The last unit of 144 inputs is half a step of tiles; a weight before had infinity there, on every thread."""
    before = make("minimums", 2048, 160, 32)
    before.scales[:] = np.inf
    packed = pack(before, "fast", isa)
    weight = make("minimums", 50, 144, 48)
    for num_tokens in (12, 67):
        multiply(packed, activations(num_tokens, 160), 2048)
        x = activations(num_tokens, 144)
        assert_fast(multiply(pack(weight, "fast", isa), x, 50), x, weight, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_exact_is_float64_within_rounding(isa, kind, shape):
    weight = make(kind, *shape)
    packed = pack(weight, "exact", isa)
    for num_tokens in (1, 2, 3, 7, 21):
        x = activations(num_tokens, shape[1], seed=num_tokens)
        got = multiply(packed, x, shape[0])
        assert_close(got, x.astype(np.float64), matrix(weight), 64)
        expected = x.astype(np.float64) @ matrix(weight).T
        assert np.linalg.norm(got - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_those_of_the_reference(isa, kind, shape):
    weight = make(kind, *shape)
    packed = pack(weight, "fast", isa)
    index = torch.tensor([shape[0] - 1, 0, shape[0] // 2, 0])
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert torch.equal(packed.rows(index, dtype), dequantize(weight, dtype, index))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_instruction_sets_agree_bit_by_bit(kind, precision):
    weight = make(kind, 45, 192, 32)
    x = activations(11, 192)
    results = [multiply(pack(weight, precision, isa), x, 45) for isa in ISAS]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_bits_depend_neither_on_threads_nor_on_company(isa, precision):
    weight = make("minimums", 201, 96, 32)
    x = activations(67, 96)
    before = _native.num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            _native.set_num_threads(count)
            results.append(multiply(pack(weight, precision, isa), x, 201))
    finally:
        _native.set_num_threads(before)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    packed = pack(weight, precision, isa)
    for first, last in ((1, FEWEST - 1), (FEWEST, FEW), (FEW + 1, 67)):  # each may go another way
        most = multiply(packed, x[:last].copy(), 201)
        for num_tokens in range(first, last):
            np.testing.assert_array_equal(multiply(packed, x[:num_tokens].copy(), 201), most[:num_tokens])


@pytest.mark.parametrize("isa", ISAS)
def test_a_large_matrix_in_many_pieces(isa):
    weight = make("minimums", 1000, 512, 32)
    x = activations(150, 512)
    got = multiply(pack(weight, "fast", isa), x, 1000)
    assert_fast(got, x, weight, isa)
    if not is_tiled(isa, 150):
        expected = quantized(x, 32).values(x.shape[1]) @ matrix(weight).T
        assert np.linalg.norm(got - expected) <= 1e-6 * np.linalg.norm(expected)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(1, 70),
    groups=st.integers(1, 5),
    group_size=st.sampled_from([16, 32, 48, 64, 128]),
    num_tokens=st.integers(1, 67),
    isa=st.sampled_from(ISAS),
    seed=st.integers(0, 1000),
)
def test_any_shape(kind, rows, groups, group_size, num_tokens, isa, seed):
    weight = make(kind, rows, groups * group_size, group_size, seed)
    x = activations(num_tokens, weight.in_features, seed)
    got = multiply(pack(weight, "exact", isa), x, rows)
    assert_close(got, x.astype(np.float64), matrix(weight), 64)
    assert_fast(multiply(pack(weight, "fast", isa), x, rows), x, weight, isa, kind in ("block", "nvfp4"))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_error_is_below_one_percent(isa, kind):
    weight = make(kind, 256, 1024, 32)
    x = activations(16, 1024)
    got = multiply(pack(weight, "fast", isa), x, 256)
    expected = x.astype(np.float64) @ matrix(weight).T
    assert np.linalg.norm(got - expected) < 0.01 * np.linalg.norm(expected)


@pytest.mark.parametrize("isa", ISAS)
def test_what_is_cut_off_leans_to_no_side(isa):
    weight = make("wide", 512, 2048, 32)
    weight.scales[:] = np.abs(weight.scales)
    weight.minimums[:] = 0
    got = multiply(pack(weight, "fast", isa), np.ones((16, 2048), np.float32), 512)
    assert abs(got[0].sum(dtype=np.float64) / matrix(weight).sum() - 1) < 5e-4  # 2.7e-3 where it is only cut off


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("code", [0, 15])
def test_the_largest_sums_do_not_overflow(isa, code):
    weight = make("minimums", 16, 64, 32)
    weight.codes.fill(code * 17)
    apart = np.where(np.arange(64) < 4, 127.0, np.where(np.arange(64) < 32, 1.0, 0.0))
    for pattern in (np.ones(64), -np.ones(64), apart, -apart):
        x = np.tile(pattern, (5, 1)).astype(np.float32)
        expected = quantized(x, 32).values(x.shape[1]) @ matrix(weight).T
        np.testing.assert_allclose(multiply(pack(weight, "fast", isa), x, 16), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_the_largest_steps_do_not_overflow(isa):
    weight = make("codebook", 16, 64, 32)
    weight.codes.fill(0)  # -127
    x = np.full((5, 64), -1.0, np.float32)
    x[3:, 8:12] = -127.0
    expected = quantized(x, 32).values(x.shape[1]) @ matrix(weight).T
    np.testing.assert_allclose(multiply(pack(weight, "fast", isa), x, 16), expected, rtol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows(isa, bad):
    weight = make("minimums", 20, 64, 32)
    for count in (3, 37):
        x = activations(count, 64)
        x[1, 40] = bad
        got = multiply(pack(weight, "fast", isa), x, 20)
        assert not np.isfinite(got[1]).any() and np.isfinite(got[np.arange(count) != 1]).all()
