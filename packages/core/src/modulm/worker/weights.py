"""Several weights as one: concatenated where their kind allows it, else side by side behind one `PackedWeight`.

Knows the canonical kinds of `interfaces/quantization.py`, no formats and no kernels. Only multiplying imports torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from modulm.interfaces.kernels import PackedWeight
from modulm.interfaces.quantization import (
    BlockFloat4,
    ChannelInt8,
    Codebook4,
    Dense,
    Encoded,
    Float8,
    GroupedInt,
    Reordered,
    VectorCodebook,
    Weight,
)

if TYPE_CHECKING:
    import torch


def stacked(parts: Sequence[Weight]) -> Weight | None:
    """Return the parts as one weight, stacked along the output, or None where they do not fit together."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if any(type(part) is not type(first) or part.in_features != first.in_features for part in parts):
        return None
    if isinstance(first, Reordered):
        return _stacked_reordered(first, [part for part in parts if isinstance(part, Reordered)])
    if isinstance(first, Float8):
        parts = [_by_rows(part) for part in parts if isinstance(part, Float8)]
        first = parts[0]
    rule = _RULES.get(type(first))
    if rule is None or any(not rule[1](first, part) for part in parts):
        return None
    fields = {name: [getattr(part, name) for part in parts] for name in rule[0]}
    if any(not _alike(arrays) for arrays in fields.values()):
        return None
    joined: dict[str, Any] = {name: np.concatenate(arrays) for name, arrays in fields.items()}
    return replace(first, out_features=sum(part.out_features for part in parts), **joined)


def halves_in_order(weight: Weight) -> Weight:
    """Return a weight whose even rows come first, then the odd ones."""
    if isinstance(weight, Reordered):
        return replace(weight, weight=halves_in_order(weight.weight))
    if isinstance(weight, Float8):
        high, wide = weight.block
        weight = replace(weight, scales=weight.scales.repeat(high, axis=0)[: weight.out_features], block=(1, wide))
    changed: dict[str, Any] = {
        name: np.concatenate([getattr(weight, name)[half::2] for half in (0, 1)]) for name in _RULES[type(weight)][0]
    }
    return replace(weight, **changed)


def _stacked_reordered(first: Reordered, parts: Sequence[Reordered]) -> Weight | None:
    inner = stacked([part.weight for part in parts])
    if inner is None or any(not np.array_equal(part.order, first.order) for part in parts):
        return None
    return replace(first, out_features=inner.out_features, weight=inner)


def _alike(arrays: list[np.ndarray]) -> bool:
    first = arrays[0]
    return all(array.shape[1:] == first.shape[1:] and array.dtype == first.dtype for array in arrays)


def _by_rows(part: Float8) -> Float8:
    """A scale for all columns of several rows is one for each of these rows, which is how parts can share a matrix."""
    high, wide = part.block
    if wide < part.in_features:
        return part
    scales = part.scales.astype(np.float32).repeat(high, axis=0)[: part.out_features]
    return replace(part, scales=scales, block=(1, part.in_features))


def _float8_fits(first: Float8, part: Float8) -> bool:
    # Blocks of several rows must end where a part ends.
    return part.block == first.block and part.out_features % part.block[0] == 0


def _codebooks_fit(first: Any, part: Any) -> bool:
    return first.group_size == part.group_size and np.array_equal(first.codebook, part.codebook)


_RULES: dict[type[Weight], tuple[tuple[str, ...], Callable[[Any, Any], bool]]] = {
    Dense: (("data",), lambda a, b: True),
    GroupedInt: (("codes", "scales", "minimums"), lambda a, b: (a.bits, a.group_size) == (b.bits, b.group_size)),
    ChannelInt8: (("codes", "scales"), lambda a, b: True),
    Float8: (("data", "scales"), _float8_fits),
    Codebook4: (("codes", "scales"), _codebooks_fit),
    VectorCodebook: (("codes", "signs", "scales"), _codebooks_fit),
    BlockFloat4: (("codes", "scales"), lambda a, b: a.group_size == b.group_size),
    Encoded: (("data",), lambda a, b: a.format == b.format and a.decode is b.decode),
}
"""Kind -> (arrays to concatenate, whether two parts agree in the rest)."""


def parts_of(packed: PackedWeight) -> tuple[PackedWeight, ...]:
    """Return the weights that `packed` puts side by side: itself, unless it is `Parts`."""
    return tuple(packed.parts) if isinstance(packed, Parts) else (packed,)


class Parts:
    """Packed weights side by side: their outputs are concatenated, their rows counted through."""

    def __init__(self, parts: Sequence[PackedWeight], out_features: Sequence[int]) -> None:
        self.parts = list(parts)
        self._starts = np.cumsum([0, *out_features], dtype=np.int64)

    def linear(self, x: "torch.Tensor") -> "torch.Tensor":
        """See `PackedWeight`."""
        import torch

        return torch.cat([part.linear(x) for part in self.parts], dim=-1)

    def rows(self, index: "torch.Tensor", dtype: "torch.dtype") -> "torch.Tensor":
        """See `PackedWeight`."""
        import torch

        starts = torch.from_numpy(self._starts).to(index.device)
        owner = torch.searchsorted(starts, index, right=True) - 1
        out: torch.Tensor | None = None
        for number, part in enumerate(self.parts):
            mine = owner == number
            rows = part.rows(index[mine] - starts[number], dtype)
            out = rows.new_empty(len(index), rows.shape[-1]) if out is None else out
            out[mine] = rows
        assert out is not None
        return out

    @property
    def size_bytes(self) -> int:
        """See `PackedWeight`."""
        return sum(part.size_bytes for part in self.parts)


class ReorderedInputs:
    """A packed weight whose inputs are in another order: activations are brought into it first. See `Reordered`."""

    def __init__(self, inner: PackedWeight, order: np.ndarray) -> None:
        self._inner = inner
        self._order = order.astype(np.int64)

    def linear(self, x: "torch.Tensor") -> "torch.Tensor":
        """See `PackedWeight`."""
        return self._inner.linear(x[..., self._index(x)])

    def rows(self, index: "torch.Tensor", dtype: "torch.dtype") -> "torch.Tensor":
        """See `PackedWeight`."""
        stored = self._inner.rows(index, dtype)
        out = stored.new_empty(stored.shape)
        out[..., self._index(stored)] = stored
        return out

    def _index(self, like: "torch.Tensor") -> "torch.Tensor":
        import torch

        return torch.from_numpy(self._order).to(like.device)

    @property
    def size_bytes(self) -> int:
        """See `PackedWeight`."""
        return self._inner.size_bytes + self._order.nbytes
