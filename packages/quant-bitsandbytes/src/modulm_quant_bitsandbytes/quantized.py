"""Quantising while loading: plain numbers -> NF4 blocks of 64 along a row, as bitsandbytes rounds them.

Scales stay float32: quantising them too would save memory in a file only. Source: Dettmers et al. 2023,
arXiv:2305.14314, appendix E; `dQuantizeNF4` of bitsandbytes.
"""

from typing import TYPE_CHECKING

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import expect
from modulm.interfaces.quantization import Codebook4, Weight, is_inner
from modulm_quant_bitsandbytes.blocks import codebook4

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

BLOCK_SIZE = 64
NF4 = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0],
    np.float32,
)  # fmt: skip
_CELLS = 64
"""Cells of [-1, 1]; so narrow that none has two of the values' midpoints in it."""
_MIDPOINTS = (NF4[1:] + NF4[:-1]) / 2
_EDGES = np.linspace(-1, 1, _CELLS + 1)[:-1]
_BELOW = np.searchsorted(_MIDPOINTS, _EDGES, side="left").astype(np.uint8)
_NEXT = np.append(_MIDPOINTS, np.inf).astype(np.float32)[_BELOW]
_AT_ONCE = 1 << 16
_FLOATS = ("float32", "float16", "bfloat16")


def nf4(numbers: np.ndarray, what: str) -> Codebook4:
    """Return floats [out_features, in_features] as NF4; in_features is even.

    Each number becomes the nearest of its block's 16 values. Blocks run over the flattened matrix. Raises
    `CheckpointError`, which begins with `what`, where a number is not finite.
    """
    out_features, in_features = numbers.shape
    flat = numbers.reshape(-1)
    codes = np.empty(flat.size // 2, np.uint8)
    scales = np.empty(-(-flat.size // BLOCK_SIZE), np.float32)
    for start in range(0, flat.size, _AT_ONCE):
        part = flat[start : start + _AT_ONCE].astype(np.float32)
        size = part.size
        part.resize(-(-size // BLOCK_SIZE), BLOCK_SIZE, refcheck=False)  # with zeros behind the last one
        largest = np.abs(part).max(axis=1)
        if not np.isfinite(largest).all():
            raise CheckpointError(f"{what} holds a number that is NaN or infinite, which cannot be quantized.")
        part /= np.where(largest > 0, largest, 1)[:, None]
        cells = ((part + 1) * (_CELLS / 2)).astype(np.uint8)
        np.minimum(cells, _CELLS - 1, out=cells)
        nearest = (_BELOW[cells] + (part > _NEXT[cells])).reshape(-1)[:size]
        codes[start // 2 : (start + size) // 2] = nearest[::2] | nearest[1::2] << 4
        scales[start // BLOCK_SIZE :][: len(largest)] = largest
    return codebook4(codes, scales, NF4, BLOCK_SIZE, (out_features, in_features))


class Made:
    """A layer that is stored in plain numbers."""

    bits = 4
    rule = f"nf4, blocks of {BLOCK_SIZE}"

    def __init__(self, checkpoint: "Checkpoint", module: str, shape: tuple[int, int]) -> None:
        self._checkpoint = checkpoint
        self._name = f"{module}.weight"
        expect(checkpoint, self._name, shape, _FLOATS, who=f"a layer of {shape[0]} x {shape[1]} to be quantized")

    @staticmethod
    def serves(name: str, in_features: int) -> bool:
        """Say whether a layer of this name is quantized: not embeddings, heads, routers, and no odd rows."""
        return is_inner(name) and in_features % 2 == 0

    def weight(self) -> Weight:
        """Return the weight."""
        return nf4(self._checkpoint.tensor(self._name), f"Tensor {self._name!r} in {self._checkpoint.path}")
