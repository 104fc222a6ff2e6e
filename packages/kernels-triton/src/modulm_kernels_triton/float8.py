"""`Float8` on a GPU: 8-bit floats are read as they are, and multiplied by activations of 16 or 32 bits, or of 8.

For few tokens a product waits for memory, so activations stay what they are, and bytes are decoded in registers, which
needs no hardware for 8-bit floats. For many it waits for tensor cores: where the device has them for 8-bit floats,
activations are rounded too, with a scale for each token, unless exactness was asked for (`rounding.py`). Scales are
applied to sums of a step, whose inputs share them. Layout: [out_features, in_features], scales as in the kind.
"""

import numpy as np
import torch
import triton

from modulm.interfaces.quantization import Float8
from modulm_kernels_triton.launch import added, num_processors, on_device, partial_sums, widens
from modulm_kernels_triton.products import float8_linear
from modulm_kernels_triton.rounding import Rounding, rounding
from modulm_kernels_triton.steps import Tile, float8_step, tile

_FEW_TOKENS = 32
"""Up to as many, activations are not rounded."""
_ROUNDED_STEP = 32
"""Inputs that tensor cores for 8-bit floats take at least."""


class Float8Matrix:
    """See `PackedWeight`. `rounds`: whether activations may be rounded."""

    def __init__(self, weight: Float8, device: str, *, rounds: bool) -> None:
        step = float8_step(weight)
        assert step is not None, "supports() comes before pack()"
        self._step, self._block = step, weight.block
        self._is_five_two = weight.data.dtype.name == "float8_e5m2"
        self._data = torch.from_numpy(np.array(weight.data.view(np.uint8))).to(device)
        self._scales = torch.from_numpy(weight.scales.astype(np.float32)).to(device)
        self._scales = self._scales.view(-(-weight.out_features // weight.block[0]), -1)
        takes_rounded = rounds and not self._is_five_two and step >= _ROUNDED_STEP
        self._rounding = rounding(self._data) if takes_rounded else None
        self._num_processors = num_processors(self._data)

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """See `PackedWeight`."""
        rows, width = self._data.shape
        cut = tile(len(x), rows, -(-width // self._step), self._num_processors)
        return self.product(x, cut, self._rounding if len(x) > _FEW_TOKENS else None)

    def product(self, x: torch.Tensor, cut: Tile, how: Rounding | None = None) -> torch.Tensor:
        """Return what `linear` does, cut as told, with activations rounded or not."""
        x = x if x.stride(-1) == 1 else x.contiguous()
        (rows, width), num_tokens = self._data.shape, len(x)
        out = partial_sums(x, rows, cut.split)
        if num_tokens:
            grid = triton.cdiv(rows, cut.rows), triton.cdiv(num_tokens, cut.tokens), cut.split
            with on_device(x):
                given, data, token_scales = x, self._data, self._scales
                if how is not None:
                    (given, token_scales), data = how.rounded(x), data.view(how.dtype)
                float8_linear[grid](
                    given, token_scales, data, self._scales, out,
                    num_tokens, rows, width, self._scales.shape[1], *self._block, given.stride(0),
                    ROUNDED=how is not None, FIVE_TWO=self._is_five_two, STEP=self._step,
                    TOKENS=cut.tokens, ROWS=cut.rows, SPLIT=cut.split, WIDEN=widens(given), num_warps=cut.num_warps,
                )  # fmt: skip
        return added(out, x.dtype)

    def rows(self, index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """See `PackedWeight`."""
        high, wide = self._block
        kind = torch.float8_e5m2 if self._is_five_two else torch.float8_e4m3fn
        values = self._data[index].view(kind).float()
        scales = self._scales[index // high].repeat_interleave(wide, 1)[:, : self._data.shape[1]]
        return (values * scales).to(dtype)

    @property
    def size_bytes(self) -> int:
        """See `PackedWeight`."""
        return self._data.nbytes + self._scales.nbytes
