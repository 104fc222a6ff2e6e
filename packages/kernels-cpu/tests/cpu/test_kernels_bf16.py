"""Products of bfloat16 by bfloat16 or 8-bit floats against float64, where processors have them; else "not run"."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modulm.interfaces.quantization import Dense, Float8
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.packed_dense import pack
from modulm_kernels_cpu.provider import CPUKernels

ISA = ""
SHAPES = [(1, 1), (3, 2), (8, 31), (31, 64), (33, 129), (40, 255), (40, 257), (65, 258), (97, 300), (64, 1027)]
NUMBERS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
CANARY = 77


@pytest.fixture(autouse=True, scope="module", params=["avx512_bf16", "amx"])
def isa(request):
    global ISA  # noqa: PLW0603
    if not _native.can_run(request.param):
        pytest.skip(f"{request.param} cannot run here: not run")
    ISA = request.param


def numbers(shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def dense(out_features, in_features, seed=0):
    data = numbers((out_features, in_features), seed).numpy().astype(ml_dtypes.bfloat16)
    return Dense(out_features=out_features, in_features=in_features, data=data)


def multiply(packed, x, out_features, dtype=torch.float32):
    """The native product into memory full of NaN between canaries."""
    count = len(x) * out_features
    room = torch.full((count + 128,), torch.nan, dtype=dtype)
    room[:64] = room[-64:] = CANARY
    address = room.data_ptr() + 64 * room.itemsize
    packed._native.linear(x.data_ptr(), NUMBERS[x.dtype], x.stride(0), len(x), address, NUMBERS[dtype], ISA)
    assert (room[:64] == CANARY).all() and (room[-64:] == CANARY).all()
    return room[64:-64].view(len(x), out_features)


def assert_close(got, x, weight):
    """Against rounded activations only float32's sums differ; against those given, as much as rounding allows."""
    matrix = torch.from_numpy(weight.data.astype(np.float64))
    if isinstance(weight, Float8):
        high, wide = weight.block
        scales = torch.from_numpy(weight.scales.astype(np.float64))
        matrix *= scales.repeat_interleave(high, 0)[: len(matrix)].repeat_interleave(wide, 1)[:, : matrix.shape[1]]
    rounded = x.bfloat16().double()
    terms = rounded.abs() @ matrix.abs().T
    longer = max(1, matrix.shape[1] / 1000)  # than what needs no more: one sum after the other rounds as often
    assert ((got.double() - rounded @ matrix.T).abs() <= 1e-6 * longer * terms).all()
    assert ((got.double() - x.double() @ matrix.T).abs() <= 2**-8 * terms).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_float64(shape):
    weight = dense(*shape)
    packed = pack(weight)
    for count in range(1, 68):
        x = numbers((count, shape[1]), count)
        assert_close(multiply(packed, x, shape[0]), x, weight)


def float8(out_features, in_features, dtype, block, seed=0, *, powers=False):
    """Any of the 256 bytes that is finite, numbers below the normal ones among them."""
    work = np.random.default_rng(seed)
    data = work.integers(0, 256, (out_features, in_features), np.uint8).view(dtype)
    data = np.where(np.isfinite(data.astype(np.float32)), data, dtype(0))
    scales = work.standard_normal((-(-out_features // block[0]), -(-in_features // block[1])), np.float32)
    scales = np.exp2(np.rint(2 * scales)) if powers else scales
    return Float8(out_features=out_features, in_features=in_features, data=data, scales=scales, block=block)


@pytest.mark.parametrize("shape", [(1, 1), (33, 129), (40, 257), (65, 258), (33, 4200)], ids=str)
@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2], ids=str)
@pytest.mark.parametrize("powers", [False, True])
def test_8_bit_floats_agree_with_float64(shape, dtype, powers):
    for block in [shape, (1, shape[1]), (128, 128), (5, 64), (1, 32)]:
        weight = float8(*shape, dtype, block, powers=powers)
        packed = pack(weight)
        x = numbers((83, shape[1]), 1)
        all_tokens = multiply(packed, x, shape[0])
        assert_close(all_tokens, x, weight)
        for count in (1, 5, 16, 17, 40, 65):
            assert torch.equal(multiply(packed, x[:count], shape[0]), all_tokens[:count])


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2], ids=str)
@pytest.mark.parametrize("powers", [False, True])
def test_a_token_alone_has_the_bits_it_has_among_twenty(dtype, powers):
    """Scales of a tensor, of rows, of blocks and of groups; half of the inputs have no subnormal number and no zero."""
    shape, x = (100, 576), numbers((20, 576), 1)
    is_small = float8(*shape, dtype, shape).data.astype(np.float32)
    is_small = np.abs(is_small) < float(ml_dtypes.finfo(dtype).smallest_normal)
    is_small &= np.arange(576) // 32 % 2 == 0
    for block in [shape, (1, 576), (128, 128), (1, 32)]:
        weight = float8(*shape, dtype, block, powers=powers)
        weight = replace(weight, data=np.where(is_small, dtype(1.5), weight.data))
        packed = pack(weight)
        among_twenty = multiply(packed, x, shape[0])
        assert_close(among_twenty, x, weight)
        for token in range(20):
            assert torch.equal(multiply(packed, x[token : token + 1], shape[0])[0], among_twenty[token])


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2], ids=str)
@pytest.mark.parametrize("exponent", [-126, -101, -100, 0, 100, 101])
def test_all_8_bit_floats_times_extreme_powers(dtype, exponent):
    """Each number in a row of its own, so that results are the weights."""
    data = np.arange(256, dtype=np.uint8).view(dtype).reshape(256, 1)
    scales = np.exp2(np.full((1, 1), exponent, np.float32))
    got = pack(Float8(out_features=256, in_features=1, data=data, scales=scales, block=(256, 1)))
    with np.errstate(invalid="ignore"):
        want = data.astype(np.float64)[:, 0] * 2.0**exponent
        want = np.where(np.isfinite(want), want, np.nan).astype(np.float32)
    np.testing.assert_array_equal(got.linear(torch.ones(1, 1), ISA)[0].numpy(), want)


def test_exact_products_with_8_bit_floats_are_those_of_float32():
    weight, x = float8(70, 333, ml_dtypes.float8_e4m3fn, (128, 128)), numbers((29, 333), 1)
    assert torch.equal(pack(weight, "exact").linear(x, ISA), pack(weight).linear(x, "avx512"))
    assert not torch.equal(pack(weight).linear(x, ISA), pack(weight).linear(x, "avx512"))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 140), st.integers(1, 600), st.integers(1, 67), st.sampled_from(list(NUMBERS)), st.integers(0, 99))
def test_any_shape(out_features, in_features, count, dtype, seed):
    weight = dense(out_features, in_features, seed)
    x = numbers((count, in_features), seed + 1).to(dtype)
    assert_close(multiply(pack(weight), x, out_features), x, weight)


def test_neither_threads_nor_company_change_a_result():
    packed = pack(dense(300, 517))
    x = numbers((250, 517), 1)
    threads = _native.num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            _native.set_num_threads(count)
            results.append(packed.linear(x, ISA))
    finally:
        _native.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)
    for count in range(1, 30):
        assert torch.equal(packed.linear(x[:count], ISA), results[0][:count])


def test_activations_are_rounded_as_torch_rounds():
    """The weight is the identity: ties, the largest numbers and infinity among what comes through it."""
    special = [0.0, -0.0, 1.00390625, 1.01171875, 3.39e38, 3.4e38, -1e30, 1.2e-38, torch.inf, -torch.inf, torch.nan]
    x = torch.cat([torch.tensor(special), numbers(4096 - len(special), 3) * 10.0 ** numbers(4096 - len(special), 4)])
    packed = pack(Dense(out_features=1, in_features=1, data=np.ones((1, 1), ml_dtypes.bfloat16)))
    got = multiply(packed, x[:, None], 1).flatten()
    assert torch.equal(got.nan_to_num(7.0), x.bfloat16().float().nan_to_num(7.0))


def test_subnormal_numbers_count_as_zero():
    """2^-127 is one; float32 and bfloat16 both hold it."""
    data = np.array([[1.0], [2.0**-127]], np.float32).astype(ml_dtypes.bfloat16)
    packed = pack(Dense(out_features=2, in_features=1, data=data))
    assert multiply(packed, torch.tensor([[2.0**-127], [2.0**100]]), 2).tolist() == [[0.0, 0.0], [2.0**100, 0.0]]


@pytest.mark.parametrize("dtype", list(NUMBERS), ids=str)
def test_activations_of_each_type_and_views(dtype):
    packed = pack(dense(45, 131))
    x = numbers((9, 140), 2).to(dtype)[:, 3:134]
    want = multiply(packed, x.float().contiguous(), 45)
    assert torch.equal(multiply(packed, x, 45), want)
    assert torch.equal(packed.linear(x, ISA), want.to(dtype))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_shows_in_its_row_and_token(bad):
    weight = dense(40, 70)
    weight.data[7, 3] = bad
    x = numbers((3, 70))
    got = multiply(pack(weight), x, 40)
    assert not torch.isfinite(got[:, 7]).any() and torch.isfinite(got).sum() == 3 * 39
    x[1, 69] = bad
    got = multiply(pack(dense(40, 70)), x, 40)
    assert not torch.isfinite(got[1]).any() and torch.isfinite(got).sum() == 2 * 40


def test_exact_products_are_those_of_float32():
    weight, x = dense(70, 333), numbers((29, 333), 1)
    fast, exact = pack(weight), pack(weight, "exact")
    assert torch.equal(exact.linear(x, ISA), fast.linear(x, "avx512"))
    assert torch.equal(exact.linear(x, ISA), exact.linear(x, "avx512"))
    assert not torch.equal(exact.linear(x, ISA), fast.linear(x, ISA))
    assert fast.native[1] is False and exact.native[1] is True


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_other_weights_keep_activations_as_they_are(dtype):
    data = dense(40, 70).data.astype(dtype)
    packed = pack(Dense(out_features=40, in_features=70, data=data))
    x = numbers((5, 70), 1)
    assert torch.equal(packed.linear(x, ISA), packed.linear(x, "avx512"))


def test_explanations_say_what_is_rounded():
    if _native.isa() != ISA:
        pytest.skip("another instruction set is in use")
    notes = {}
    for precision in ("fast", "exact"):
        kernels = CPUKernels()
        kernels.configure(num_threads=None, precision=precision)
        notes[precision] = kernels.supports("linear", dense(3, 4), "cpu").note
    assert notes["fast"] == f"{ISA}, fast: panels of plain numbers, activations rounded to bfloat16, float32 sums"
    assert notes["exact"] == f"{ISA}, exact: panels of plain numbers, float32 sums"


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="'quick'"):
        pack(dense(3, 4), "quick")
