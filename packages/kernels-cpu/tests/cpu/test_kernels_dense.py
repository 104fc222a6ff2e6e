"""Products with plain numbers against float64, on every instruction set that runs here."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modulm.interfaces.quantization import ChannelInt8, Dense, Float8
from modulm.reference.dequantize import dequantize
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.packed_dense import pack, supports

ISAS = [name for name in ("generic", "avx2", "avxvnni", "avx512", "neon") if _native.can_run(name)]
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
KINDS = [np.float32, np.float16, ml_dtypes.bfloat16]
TINY = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
NUMBERS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
SHAPES = [(1, 1), (3, 2), (8, 31), (31, 64), (32, 128), (33, 129), (40, 257), (65, 576), (97, 300)]
TOKENS = [1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 24, 25, 67]
CANARY = 77


def random(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def numbers(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def dense(out_features, in_features, dtype, seed=0):
    data = numbers((out_features, in_features), seed).astype(dtype)
    return Dense(out_features=out_features, in_features=in_features, data=data)


def float8(out_features, in_features, dtype, block, seed=0):
    data = numbers((out_features, in_features), seed).astype(dtype)
    count = (-(-out_features // block[0]), -(-in_features // block[1]))
    scales = numbers(count, seed + 1) / np.float32(8)
    return Float8(out_features=out_features, in_features=in_features, data=data, scales=scales, block=block)


def multiply(packed, x, out_features, isa, dtype=torch.float32):
    """The native product into memory full of NaN between canaries."""
    count = len(x) * out_features
    room = torch.full((count + 128,), torch.nan, dtype=dtype)
    room[:64] = room[-64:] = CANARY
    x_type, address = NUMBERS[x.dtype], room.data_ptr() + 64 * room.itemsize
    packed._native.linear(x.data_ptr(), x_type, x.shape[1], len(x), address, NUMBERS[dtype], isa)
    assert (room[:64] == CANARY).all() and (room[-64:] == CANARY).all()
    return room[64:-64].view(len(x), out_features)


def assert_close(got, x, weight):
    """Terms of a result may cancel: each is held against their magnitudes, and many together against themselves."""
    matrix = dequantize(weight, torch.float32).double()
    expected, terms = x.double() @ matrix.T, x.double().abs() @ matrix.abs().T
    error = got.double() - expected
    assert torch.isfinite(got).all()
    assert (error.abs() <= 1e-6 * terms).all()
    assert error.norm() <= 1e-5 * (expected.norm() if got.numel() >= 100 else terms.norm())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_agrees_with_float64(isa, shape, dtype):
    weight = dense(*shape, dtype)
    packed = pack(weight)
    for count in TOKENS:
        x = random((count, shape[1]), count)
        assert_close(multiply(packed, x, shape[0], isa), x, weight)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TINY, ids=str)
def test_8_bit_floats_agree_with_float64(isa, shape, dtype):
    for block in [shape, (1, shape[1]), (128, 128), (5, 32), (48, 64), (1, 32)]:
        weight = float8(*shape, dtype, block)
        packed = pack(weight)
        for count in (1, 5, 14):
            x = random((count, shape[1]), count)
            assert_close(multiply(packed, x, shape[0], isa), x, weight)


@pytest.mark.parametrize("isa", ISAS)
def test_scales_that_are_powers_of_two_take_a_byte(isa):
    weight = float8(70, 320, TINY[0], (1, 32))
    powers = replace(weight, scales=np.exp2(np.rint(9 * weight.scales)))
    packed = pack(powers)
    numbers = 96 * 320 + 3 * 10  # and for each 32 x 32 whether some are small
    assert packed.size_bytes == numbers + 96 * 10 and pack(weight).size_bytes == numbers + 96 * 10 * 4
    assert torch.equal(packed.rows(torch.arange(70), torch.float32), dequantize(powers, torch.float32))
    x = random((9, 320), 1)
    assert_close(multiply(packed, x, 70, isa), x, powers)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 140), st.integers(1, 300)),
    count=st.integers(1, 67),
    dtype=st.sampled_from(KINDS),
    isa=st.sampled_from(ISAS),
    seed=st.integers(0, 1000),
)
def test_any_shape(shape, count, dtype, isa, seed):
    weight = dense(*shape, dtype, seed)
    x = random((count, shape[1]), seed + 1)
    assert_close(multiply(pack(weight), x, shape[0], isa), x, weight)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_wide_instruction_sets_give_the_same_bits(dtype):
    packed = pack(dense(70, 333, dtype))
    x = random((29, 333), 1)
    results = [packed.linear(x, isa) for isa in ISAS if isa.startswith("avx")]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", TINY, ids=str)
@pytest.mark.parametrize("block", [(70, 333), (1, 64), (32, 128)])
def test_wide_instruction_sets_give_the_same_bits_of_8_bit_floats(dtype, block):
    packed = pack(float8(70, 333, dtype, block))
    x = random((29, 333), 1)
    results = [packed.linear(x, isa) for isa in ISAS if isa.startswith("avx")]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [*KINDS, TINY[0]], ids=str)
def test_neither_threads_nor_company_change_a_result(isa, dtype):
    weight = dense(300, 260, dtype) if dtype in KINDS else float8(300, 260, dtype, (128, 128))
    packed = pack(weight)
    x = random((250, 260), 1)
    threads = _native.num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            _native.set_num_threads(count)
            results.append(packed.linear(x, isa))
    finally:
        _native.set_num_threads(threads)
    alone = torch.cat([packed.linear(row, isa) for row in x[:20].split(1)])
    assert all(torch.equal(result, results[0]) for result in results)
    assert torch.equal(alone, results[0][:20])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_activations_of_each_type(isa, dtype, kind):
    packed = pack(dense(45, 131, kind))
    x = random((9, 131), 2).to(dtype)
    got = packed.linear(x, isa)
    assert got.dtype == dtype
    assert torch.equal(got, packed.linear(x.float(), isa).to(dtype))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_results_are_rounded_as_torch_rounds(isa, dtype):
    """The weight is the identity: results are the activations, large, small and not finite ones among them."""
    special = [0.0, -0.0, 1e-45, 6e-8, 2.98e-8, 3e-8, 6.1e-5, 65504.0, 65519.0, 65520.0, -1e6, 3.39e38, 1.00390625]
    x = torch.cat([torch.tensor(special), random(4096 - len(special), 3) * 10.0 ** random(4096 - len(special), 4)])
    packed = pack(Dense(out_features=1, in_features=1, data=np.ones((1, 1), np.float32)))
    got = multiply(packed, x[:, None], 1, isa, dtype)
    assert torch.equal(got.flatten() + 0.0, x.to(dtype) + 0.0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [*KINDS, *TINY], ids=str)
def test_what_is_not_finite_shows(isa, dtype):
    data = numbers((40, 70)).astype(dtype)
    data.view(np.uint8)[7, : data.itemsize] = 0x7F if dtype in TINY else 0xFF
    weight = Dense(out_features=40, in_features=70, data=data)
    if dtype in TINY:
        weight = Float8(out_features=40, in_features=70, data=data, scales=np.ones((1, 1), np.float32), block=(40, 70))
    for count in (3, 40):
        got = pack(weight).linear(random((count, 70)), isa)
        assert got[:, 7].isnan().all()
        assert torch.isfinite(got).sum() == count * 39


@pytest.mark.parametrize("dtype", TINY, ids=str)
def test_all_codes_of_8_bit_floats(dtype):
    data = np.arange(256, dtype=np.uint8).view(dtype).reshape(16, 16)
    scales = np.abs(numbers((4, 1)))
    weight = Float8(out_features=16, in_features=16, data=data, scales=scales, block=(4, 16))
    index = torch.tensor([3, 0, 15, 3, 8])
    assert torch.equal(
        pack(weight).rows(index, torch.float32).nan_to_num(7.0),
        dequantize(weight, torch.float32, index).nan_to_num(7.0),
    )
    for isa in ISAS:
        got = pack(weight).linear(torch.eye(16), isa).T
        expected = dequantize(weight, torch.float32)
        finite = torch.isfinite(expected).all(1)
        assert finite.any()
        assert torch.equal(got[finite], expected[finite])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_are_those_of_the_matrix(dtype, kind):
    weight = dense(75, 133, kind)
    index = torch.tensor([74, 0, 31, 32, 33, 5, 5])
    assert torch.equal(pack(weight).rows(index, dtype), dequantize(weight, dtype, index))
    assert pack(weight).rows(index[:0], dtype).shape == (0, 133)


def test_a_view_is_read_where_it_lies():
    weight = dense(20, 48, np.float32)
    wide = random((10, 96), 1)
    packed = pack(weight)
    for x in (wide[:, :48], wide[::2, :48], wide[:, ::2], wide[:1, :48].expand(5, 48), wide[:, :48].T.contiguous().T):
        assert torch.equal(packed.linear(x), packed.linear(x.clone(memory_format=torch.contiguous_format)))


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_weights_are_read_where_they_lie_or_copied(dtype, at_odd_address):
    data = numbers((20, 48)).astype(dtype)
    locked = data.copy()
    locked.flags.writeable = False
    views = [data[:, 5:35], data.T, data[::3], data[:, ::2], data[::-1], data[:, ::-1], data[3:4], data[:, 7:8], locked]
    views += [np.broadcast_to(data[0], (7, 48)), np.broadcast_to(data[:, :1], (20, 9)), at_odd_address(data)]
    for view in views:
        weight = Dense(out_features=view.shape[0], in_features=view.shape[1], data=view)
        want = torch.from_numpy(np.array(view, np.float32, order="C"))
        assert torch.equal(pack(weight).rows(torch.arange(len(view)), torch.float32), want)


def test_no_tokens_and_size():
    packed = pack(dense(64, 100, ml_dtypes.bfloat16))
    assert packed.linear(torch.empty(0, 100)).shape == (0, 64)
    assert packed.size_bytes == 64 * 100 * 2


def test_what_is_refused():
    packed = pack(dense(20, 48, np.float32))
    with pytest.raises(ValueError, match=r"\[num_tokens, 48\]"):
        packed.linear(torch.zeros(3, 47))
    with pytest.raises(ValueError, match="shape"):
        packed.linear(torch.zeros(48))
    with pytest.raises(TypeError, match="float64"):
        packed.linear(torch.zeros(3, 48, dtype=torch.float64))
    with pytest.raises(TypeError, match="meta"):
        packed.linear(torch.zeros(3, 48, device="meta"))
    with pytest.raises(ValueError, match="cannot run here"):
        packed.linear(torch.zeros(3, 48), "mmx")
    with pytest.raises(IndexError, match="Row 20"):
        packed.rows(torch.tensor([0, 20]), torch.float32)
    with pytest.raises(IndexError, match="Row -1"):
        packed.rows(torch.tensor([-1]), torch.float32)
    with pytest.raises(TypeError, match="int64"):
        packed.rows(torch.tensor([1], dtype=torch.int32), torch.float32)
    with pytest.raises(TypeError, match="float64"):
        packed.rows(torch.tensor([1]), torch.float64)
    with pytest.raises(ValueError, match="vector"):
        packed.rows(torch.tensor([[1]]), torch.float32)


def test_weights_that_are_refused():
    with pytest.raises(ValueError, match="shape"):
        pack(Dense(out_features=3, in_features=5, data=np.zeros((5, 3), np.float32)))
    with pytest.raises(TypeError, match="float64"):
        pack(Dense(out_features=3, in_features=5, data=np.zeros((3, 5))))
    with pytest.raises(TypeError, match="'?>f4'?"):
        pack(Dense(out_features=3, in_features=5, data=np.zeros((3, 5), ">f4")))
    with pytest.raises(TypeError, match="torch.Tensor; it must be an array of numpy"):
        pack(Dense(out_features=3, in_features=5, data=torch.zeros(3, 5)))
    with pytest.raises(ValueError, match="at least one row"):
        pack(Dense(out_features=0, in_features=5, data=np.zeros((0, 5), np.float32)))
    tiny = np.zeros((3, 5), TINY[0])
    with pytest.raises(ValueError, match="one scale for each block"):
        pack(Float8(out_features=3, in_features=5, data=tiny, scales=np.ones((2, 2)), block=(3, 5)))
    with pytest.raises(ValueError, match="at least one row"):
        pack(Float8(out_features=3, in_features=5, data=tiny, scales=np.ones((1, 1)), block=(0, 5)))
    odd = Float8(out_features=3, in_features=5, data=tiny, scales=np.ones((1, 2)), block=(3, 4))
    assert supports(odd).reason == "blocks of 4 inputs are neither a multiple of 32 nor a whole row"
    with pytest.raises(ValueError, match="a multiple of 32 inputs"):
        pack(odd)
    channels = ChannelInt8(
        out_features=3, in_features=5, codes=np.zeros((3, 5), np.int8), scales=np.ones(3, np.float32)
    )
    assert not supports(channels)
    with pytest.raises(TypeError, match="ChannelInt8"):
        pack(channels)
    assert not supports(Dense(out_features=3, in_features=5, data=np.zeros((3, 5))))
    assert not supports(
        Float8(out_features=3, in_features=5, data=np.zeros((3, 5), np.float32), scales=np.ones((1, 1)), block=(3, 5))
    )


def test_native_code_refuses_what_it_cannot_trust():
    data, x, out = torch.zeros(4, 8), torch.zeros(2, 8), torch.zeros(2, 4)
    index = torch.zeros(2, dtype=torch.int64)
    good = (data.data_ptr(), 0, 4, 8, 8)
    for position, value in [(0, 0), (0, data.data_ptr() + 1), (1, 5), (1, -1), (1, 3), (2, 0), (2, -4), (3, 0), (4, 7)]:
        with pytest.raises(ValueError, match=r"."):
            _native.DenseWeight(*good[:position], value, *good[position + 1 :])
    with pytest.raises(ValueError, match="2\\^40"):
        _native.DenseWeight(data.data_ptr(), 0, 1 << 40, 1 << 40, 1 << 40)
    weight = _native.DenseWeight(*good)
    call = (x.data_ptr(), 0, 8, 2, out.data_ptr(), 0)
    weight.linear(*call)
    for position, value in [(0, 0), (0, x.data_ptr() + 2), (1, 3), (2, 7), (2, 1 << 62), (3, 0), (3, -1), (3, 1 << 60),
                            (4, 0), (4, out.data_ptr() + 1), (5, 9)]:  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            weight.linear(*call[:position], value, *call[position + 1 :])
    look_up = (index.data_ptr(), 2, out.data_ptr(), 0)
    for position, value in [(0, 0), (0, index.data_ptr() + 4), (1, 0), (1, -1), (1, 1 << 60), (2, 0), (3, 3)]:
        with pytest.raises(ValueError, match=r"."):
            weight.rows(*look_up[:position], value, *look_up[position + 1 :])
    with pytest.raises(TypeError):
        weight.linear(None, *call[1:])
    with pytest.warns(RuntimeWarning, match="uninitialized"), pytest.raises(TypeError):
        _native.DenseWeight.__new__(_native.DenseWeight).linear(*call)
