"""Weights whose inputs are stored in another order (`Reordered`), around a weight that another module packs.

One gather of activations per product. Knows no layout.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from modulm.interfaces.quantization import Reordered
from modulm_kernels_cpu.packed_dense import PackedMatrix
from modulm_kernels_cpu.weight_arrays import require

if TYPE_CHECKING:
    import torch


class ReorderedMatrix(PackedMatrix):
    """A `PackedWeight`: column j of `inner` belongs to input order[j]."""

    def __init__(self, inner: PackedMatrix, weight: Reordered) -> None:
        from modulm_kernels_cpu import _native

        require(weight.order, (weight.in_features,), ("int32",), "order")
        self._inner = inner
        self._order = np.ascontiguousarray(weight.order)
        self._places: torch.Tensor | None = None  # made when torch is there
        native, self._is_exact = inner.native
        self._program_weight = _native.ReorderedWeight(native, self._order)

    def linear(self, x: "torch.Tensor", isa: str = "") -> "torch.Tensor":
        """See `PackedWeight`."""
        if x.ndim != 2 or x.shape[1] != len(self._order):
            raise ValueError(f"x has shape {list(x.shape)}; this weight takes [num_tokens, {len(self._order)}].")
        return self._inner.linear(x.index_select(1, self._index()), isa)

    def rows(self, index: "torch.Tensor", dtype: "torch.dtype") -> "torch.Tensor":
        """See `PackedWeight`."""
        stored = self._inner.rows(index, dtype)
        out = stored.new_empty(stored.shape)
        out[:, self._index()] = stored
        return out

    @property
    def native(self) -> tuple[Any, bool]:
        """See `PackedMatrix`."""
        return self._program_weight, self._is_exact

    @property
    def size_bytes(self) -> int:
        """See `PackedWeight`."""
        return self._inner.size_bytes + self._order.nbytes

    def _index(self) -> "torch.Tensor":
        if self._places is None:
            import torch

            self._places = torch.from_numpy(self._order).long()
        return self._places
