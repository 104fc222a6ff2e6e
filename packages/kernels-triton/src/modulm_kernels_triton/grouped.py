"""`GroupedInt` on a GPU: value = scale * code + minimum, dequantised in registers, multiplied by tensor cores.

Layout: [steps, out_features, step] bytes, so that a program loads a tile as one run. Up to 4 bits a byte holds an input
of a step in its low half and one of the next step in its high half; a step lies within a group (`steps.py`). Scales and
minimums are [groups, out_features]. Inputs in another order (`Reordered`) are gathered as activations are loaded.
"""

from typing import Any

import numpy as np
import torch
import triton

from modulm.interfaces.quantization import GroupedInt
from modulm_kernels_triton.launch import added, num_processors, on_device, partial_sums, widens
from modulm_kernels_triton.products import grouped_linear
from modulm_kernels_triton.steps import Tile, grouped_step, tile


class GroupedMatrix:
    """See `PackedWeight`. `order` is that of `Reordered`, or None."""

    def __init__(self, weight: GroupedInt, order: np.ndarray | None, device: str) -> None:
        step = grouped_step(weight)
        assert step is not None, "supports() comes before pack()"
        self._step, self._group_size = step, weight.group_size
        self._shape = weight.out_features, weight.in_features
        self._per_byte = 2 if weight.bits <= 4 else 1
        self._codes = self._packed(_tensor(weight.codes, device))
        self._scales, self._minimums = (_tensor(a, device).T.contiguous() for a in (weight.scales, weight.minimums))
        self._order = None if order is None else _tensor(order, device)
        self._num_processors = num_processors(self._codes)

    def _packed(self, codes: torch.Tensor) -> torch.Tensor:
        """Return uint8 [blocks, out_features, step] of a `GroupedInt`'s codes; inputs beyond the last are 0."""
        rows, width = self._shape
        if self._per_byte == 2:
            codes = torch.stack((codes & 15, codes >> 4), -1).view(rows, width)
        codes = torch.nn.functional.pad(codes, (0, -width % (self._step * self._per_byte)))
        steps = codes.view(rows, -1, self._per_byte, self._step).permute(1, 2, 0, 3)
        return (steps[:, 0] | steps[:, 1] << 4 if self._per_byte == 2 else steps[:, 0]).contiguous()

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """See `PackedWeight`."""
        return self.product(x, tile(len(x), self._shape[0], len(self._codes), self._num_processors))

    def product(self, x: torch.Tensor, cut: Tile) -> torch.Tensor:
        """Return what `linear` does, cut as told."""
        x = x if x.stride(-1) == 1 else x.contiguous()
        (rows, width), num_tokens = self._shape, len(x)
        out = partial_sums(x, rows, cut.split)
        if num_tokens:
            grid = triton.cdiv(rows, cut.rows), triton.cdiv(num_tokens, cut.tokens), cut.split
            with on_device(x):
                grouped_linear[grid](
                    x, self._codes, self._scales, self._minimums, self._order if self._order is not None else x, out,
                    num_tokens, rows, width, len(self._scales), self._group_size, x.stride(0),
                    PER_BYTE=self._per_byte, HAS_ORDER=self._order is not None, STEP=self._step,
                    TOKENS=cut.tokens, ROWS=cut.rows, SPLIT=cut.split, WIDEN=widens(x), num_warps=cut.num_warps,
                )  # fmt: skip
        return added(out, x.dtype)

    def rows(self, index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """See `PackedWeight`."""
        width = self._shape[1]
        packed = self._codes[:, index].transpose(0, 1)
        halves = (packed & 15, packed >> 4) if self._per_byte == 2 else (packed,)
        codes = torch.stack(halves, 2).flatten(1)[:, :width].float()
        scales, minimums = (a[:, index].T.float() for a in (self._scales, self._minimums))
        values = (codes.unflatten(1, (scales.shape[1], -1)) * scales[..., None] + minimums[..., None]).flatten(1)
        if self._order is not None:
            values = torch.empty_like(values).index_copy_(1, self._order.long(), values)
        return values.to(dtype)

    @property
    def size_bytes(self) -> int:
        """See `PackedWeight`."""
        held = (self._codes, self._scales, self._minimums, self._order)
        return sum(tensor.nbytes for tensor in held if tensor is not None)


def _tensor(array: np.ndarray, device: str) -> Any:
    return torch.from_numpy(np.array(array)).to(device)  # a copy: arrays are views on a mapped file
