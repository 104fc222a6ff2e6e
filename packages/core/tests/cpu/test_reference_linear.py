"""Every canonical kind of weight, dequantised and multiplied in pieces, against numpy in float64."""

import ml_dtypes
import numpy as np
import pytest
import torch

from modulm.interfaces.quantization import Weight
from modulm.reference import weights_torch
from modulm.reference.dequantize import dequantize
from modulm.reference.linear_torch import TorchKernels
from modulm.reference.tensors import to_torch
from modulm_testkit.oracles.weights import dequantised
from modulm_testkit.weights import KINDS, RandomWeights

OUT, IN = 13, 64
SIZE = {"out_features": OUT, "in_features": IN}


def random_weight(kind):
    """A weight and what it is worth."""
    weight = RandomWeights(OUT, IN, group_size=16).make(kind)
    return weight, dequantised(weight)


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_dequantises_whole_and_by_rows(kind):
    weight, want = random_weight(kind)
    np.testing.assert_allclose(dequantize(weight, torch.float32).numpy(), want, rtol=2e-6, atol=2e-6)
    rows = [12, 0, 5, 5]
    chosen = dequantize(weight, torch.float32, torch.tensor(rows))
    np.testing.assert_allclose(chosen.numpy(), want[rows], rtol=2e-6, atol=2e-6)
    assert dequantize(weight, torch.bfloat16, slice(3, 3)).shape == (0, IN)


@pytest.mark.parametrize("kind", KINDS)
def test_multiplies_a_few_rows_at_a_time(kind, monkeypatch):
    monkeypatch.setattr(weights_torch, "_CHUNK", 5 * IN)  # several chunks, and a rest
    weight, want = random_weight(kind)
    x = numbers(3, IN)
    found = TorchKernels().pack(weight, "cpu", "float32").linear(torch.from_numpy(x))
    np.testing.assert_allclose(found.numpy(), x @ want.T, rtol=1e-4, atol=1e-4)


def test_counts_the_bytes_it_holds():
    weight, _ = random_weight("GroupedInt 4")
    size = TorchKernels().pack(weight, "cpu", "float32").size_bytes
    assert size == OUT * IN // 2 + 2 * 4 * OUT * IN // 16


def test_a_dense_weight_is_not_copied():
    weight, _ = random_weight("Dense float32")
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
    assert "'convolution'" in provider.supports("convolution", random_weight("Dense float32")[0], "cpu").reason
    with pytest.raises(TypeError, match="Strange"):
        dequantize(Strange(**SIZE), torch.float32)
