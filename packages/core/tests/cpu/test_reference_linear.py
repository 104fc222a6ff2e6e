"""Every canonical kind of weight, dequantised and multiplied, against numpy in float64."""

import ml_dtypes
import numpy as np
import pytest
import torch

from modulm.interfaces.quantization import (
    BlockFloat4,
    ChannelInt8,
    Codebook4,
    Dense,
    Encoded,
    Float8,
    GroupedInt,
    Weight,
)
from modulm.reference import weights_torch
from modulm.reference.dequantize import dequantize
from modulm.reference.linear_torch import TorchKernels
from modulm.reference.tensors import to_torch

OUT, IN, GROUP = 13, 32, 8
RNG = np.random.default_rng(0)
SIZE = {"out_features": OUT, "in_features": IN}
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def pack4(codes):
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)


def grouped(values):
    return np.repeat(values, GROUP, axis=1)


def numbers(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def dense():
    data = numbers(OUT, IN)
    return Dense(**SIZE, data=data), data.astype(np.float64)


def grouped_int(bits):
    codes = RNG.integers(0, 2**bits, (OUT, IN))
    scales, minimums = numbers(OUT, IN // GROUP), numbers(OUT, IN // GROUP)
    packed = pack4(codes) if bits <= 4 else codes.astype(np.uint8)
    weight = GroupedInt(**SIZE, bits=bits, group_size=GROUP, codes=packed, scales=scales, minimums=minimums)
    return weight, grouped(scales.astype(np.float64)) * codes + grouped(minimums)


def channel_int8():
    codes, scales = RNG.integers(-128, 128, (OUT, IN)).astype(np.int8), numbers(OUT)
    weight = ChannelInt8(**SIZE, codes=codes, scales=scales)
    return weight, scales.astype(np.float64)[:, None] * codes


def float8(dtype, block):
    data = numbers(OUT, IN).astype(dtype)
    high, wide = block
    scales = numbers(-(-OUT // high), -(-IN // wide))
    spread = np.array([[scales[row // high, column // wide] for column in range(IN)] for row in range(OUT)])
    weight = Float8(**SIZE, data=data, scales=scales, block=block)
    return weight, spread * data.astype(np.float64)


def codebook4():
    codes, scales, book = RNG.integers(0, 16, (OUT, IN)), numbers(OUT, IN // GROUP), numbers(16)
    weight = Codebook4(**SIZE, group_size=GROUP, codes=pack4(codes), scales=scales, codebook=book)
    return weight, grouped(scales.astype(np.float64)) * book[codes]


def block_float4(kind):
    codes = RNG.integers(0, 16, (OUT, IN))
    exponents = RNG.integers(120, 134, (OUT, IN // GROUP)).astype(np.uint8)
    if kind == "bytes":
        scales, values = exponents, 2.0 ** (exponents.astype(np.float64) - 127)
    elif kind == "e8m0":
        scales = exponents.view(ml_dtypes.float8_e8m0fnu)
        values = 2.0 ** (exponents.astype(np.float64) - 127)
    elif kind == "e4m3":
        scales = numbers(OUT, IN // GROUP).astype(ml_dtypes.float8_e4m3fn)
        values = scales.astype(np.float64)
    else:
        scales = numbers(OUT, IN // GROUP)
        values = scales.astype(np.float64)
    return BlockFloat4(**SIZE, group_size=GROUP, codes=pack4(codes), scales=scales), grouped(values) * FP4[codes]


def encoded():
    data = RNG.integers(0, 256, (OUT, IN)).astype(np.uint8)
    decode = lambda rows: rows.astype(np.float32) / 16 - 3  # noqa: E731
    return Encoded(**SIZE, format="odd", data=data, decode=decode), data / 16 - 3


CASES = {
    "dense": dense,
    **{f"{bits} bits": lambda bits=bits: grouped_int(bits) for bits in (2, 3, 4, 5, 6, 8)},
    "int8": channel_int8,
    "float8 per tensor": lambda: float8(ml_dtypes.float8_e4m3fn, (OUT, IN)),
    "float8 per channel": lambda: float8(ml_dtypes.float8_e5m2, (1, IN)),
    "float8 blocks": lambda: float8(ml_dtypes.float8_e4m3fn, (4, 16)),
    "float8 odd blocks": lambda: float8(ml_dtypes.float8_e4m3fn, (5, 24)),
    "codebook": codebook4,
    **{f"fp4, {kind} scales": lambda kind=kind: block_float4(kind) for kind in ("bytes", "e8m0", "e4m3", "float")},
    "encoded": encoded,
}


@pytest.mark.parametrize("name", CASES)
def test_dequantises_whole_and_by_rows(name):
    weight, want = CASES[name]()
    np.testing.assert_allclose(dequantize(weight, torch.float32).numpy(), want, rtol=2e-6, atol=2e-6)
    rows = [12, 0, 5, 5]
    chosen = dequantize(weight, torch.float32, torch.tensor(rows))
    np.testing.assert_allclose(chosen.numpy(), want[rows], rtol=2e-6, atol=2e-6)
    assert dequantize(weight, torch.bfloat16, slice(3, 3)).shape == (0, IN)


@pytest.mark.parametrize("name", CASES)
def test_multiplies_and_looks_up(name, monkeypatch):
    monkeypatch.setattr(weights_torch, "_CHUNK", 5 * IN)  # several chunks, and a rest
    weight, want = CASES[name]()
    provider = TorchKernels()
    assert provider.supports("linear", weight, "cpu")
    packed = provider.pack(weight, "cpu", "float32")
    x = numbers(3, IN)
    np.testing.assert_allclose(packed.linear(torch.from_numpy(x)).numpy(), x @ want.T, rtol=1e-4, atol=1e-4)
    found = packed.rows(torch.tensor([7, 7, 12]), torch.float16)
    assert found.dtype == torch.float16
    np.testing.assert_allclose(found.float().numpy(), want[[7, 7, 12]], rtol=1e-2, atol=1e-2)
    assert packed.size_bytes > 0


def test_counts_the_bytes_it_holds():
    weight, _ = grouped_int(4)
    size = TorchKernels().pack(weight, "cpu", "float32").size_bytes
    assert size == OUT * IN // 2 + 2 * 4 * OUT * IN // GROUP


def test_a_dense_weight_is_not_copied():
    weight, _ = dense()
    packed = TorchKernels().pack(weight, "cpu", "float32")
    assert packed._data.data_ptr() == weight.data.ctypes.data


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", *(f"float8_{kind}" for kind in ("e4m3fn", "e5m2")), "bfloat16"]
)
def test_arrays_become_tensors_of_the_same_name_and_memory(dtype):
    array = numbers(5, 6).astype(getattr(ml_dtypes, dtype, dtype))[::2, 1:4]
    array.flags.writeable = False
    tensor = to_torch(array)
    assert str(tensor.dtype) == f"torch.{dtype}"
    assert tensor.data_ptr() == array.ctypes.data
    np.testing.assert_array_equal(tensor.float().numpy(), array.astype(np.float32))


def test_an_unknown_kind_is_rejected_with_a_reason():
    class Strange(Weight):
        pass

    provider = TorchKernels()
    assert "Strange" in provider.supports("linear", Strange(**SIZE), "cpu").reason
    assert "'convolution'" in provider.supports("convolution", dense()[0], "cpu").reason
    with pytest.raises(TypeError, match="Strange"):
        dequantize(Strange(**SIZE), torch.float32)
