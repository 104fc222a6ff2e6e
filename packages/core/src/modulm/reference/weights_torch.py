"""Weights in plain torch: dense ones as they are, all others dequantised at every call, a few rows at a time.

How each kind is stored is in `dequantize.py`; `linear_torch.py` says which is asked when.
"""

from typing import Any

import torch
import torch.nn.functional as F

from modulm.interfaces.kernels import PackedWeight
from modulm.interfaces.quantization import Dense, Weight
from modulm.reference.dequantize import as_tensors, dequantized_rows, tensors_of
from modulm.reference.tensors import to_torch

_CHUNK = 1 << 18
"""Most numbers that are dequantised at once: 1 MiB in float32 stays in the cache and in the allocator's pool."""


class DenseWeight:
    """A plain matrix [out_features, in_features] in the compute dtype."""

    def __init__(self, data: torch.Tensor) -> None:
        self._data = data

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """See `PackedWeight`."""
        return F.linear(x, self._data)

    def rows(self, index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """See `PackedWeight`."""
        return self._data[index].to(dtype)

    @property
    def size_bytes(self) -> int:
        """See `PackedWeight`."""
        return self._data.nbytes


class QuantizedWeight:
    """A weight as its checkpoint has it, dequantised on the way. `weight` is one that `as_tensors` made."""

    def __init__(self, weight: Any) -> None:
        self._weight = weight

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """See `PackedWeight`."""
        count = self._weight.out_features
        at_once = max(1, _CHUNK // self._weight.in_features)
        out = x.new_empty(*x.shape[:-1], count)
        for first in range(0, count, at_once):
            rows = slice(first, min(first + at_once, count))
            out[..., rows] = F.linear(x, dequantized_rows(self._weight, x.dtype, rows))
        return out

    def rows(self, index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """See `PackedWeight`."""
        return dequantized_rows(self._weight, dtype, index)

    @property
    def size_bytes(self) -> int:
        """See `PackedWeight`."""
        return sum(tensor.nbytes for tensor in tensors_of(self._weight).values())


def packed(weight: Weight, device: str, dtype: str) -> PackedWeight:
    """Return the weight on `device`; a dense one is converted to `dtype`, once, where it has another."""
    if isinstance(weight, Dense):
        return DenseWeight(to_torch(weight.data, device).to(getattr(torch, dtype)))
    return QuantizedWeight(as_tensors(weight, device))
