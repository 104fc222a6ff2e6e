"""Takes ggml's blocks apart: raw rows -> what `GroupedInt`, `Codebook4` and `VectorCodebook` hold.

All in numpy and exact: scale * code + minimum, each step rounded to float32, is what gguf's dequantisation gives, bit
for bit (only a zero may lose its sign). Where a type has its bits is known to `blocks.py` and `grid_blocks.py`, which
read them with `half` and `fields`. Knows no tensors and no files; `scheme.py` calls it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from modulm_quant_gguf.ggml_types import GGMLType

Array = np.ndarray
Split = Callable[[Array], tuple[Array, Array, Array | None]]

# Blocks are taken apart in pieces whose temporaries stay in a core's cache; large pieces take three times as long.
_PIECE_ELEMENTS = 1 << 16


class Layout(NamedTuple):
    """How one type is taken apart.

    `split` turns blocks uint8 [n, bytes] into codes uint8 [n, elements], scales float32 [n, groups] and minimums of
    the same shape, or None where the codes index `codebook`. `half`: the scales are float16 in the file.
    """

    bits: int
    group_size: int
    split: Split
    half: bool = False
    codebook: tuple[float, ...] | None = None


class VectorLayout(NamedTuple):
    """How a type of vectors is taken apart.

    `split` turns blocks uint8 [n, bytes] into places of vectors [n, elements / length], signs uint8 [n, elements / 8]
    (or of no columns) and scales [n, groups]. `codebook` returns a type's vectors, by its name.
    """

    group_size: int
    split: Callable[[Array], tuple[Array, Array, Array]]
    codebook: Callable[[str], Array]
    signed: bool = True


def unpack_vectors(rows: Array, kind: GGMLType, layout: VectorLayout) -> tuple[Array, Array, Array]:
    """Take rows uint8 [out_features, bytes] apart into codes, signs and scales as `VectorCodebook` has them."""
    blocks = rows.reshape(-1, kind.size)
    length = layout.codebook(kind.name).shape[1]
    codes = np.empty((len(blocks), kind.block // length), np.uint16)
    signs = np.empty((len(blocks), kind.block // 8 if layout.signed else 0), np.uint8)
    scales = np.empty((len(blocks), kind.block // layout.group_size), np.float32)
    step = _PIECE_ELEMENTS // kind.block
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            piece = slice(start, start + step)
            codes[piece], signs[piece], scales[piece] = layout.split(blocks[piece])

    def by_rows(array: Array) -> Array:
        return array.reshape(len(rows), array.size // len(rows))

    return by_rows(codes), by_rows(signs), by_rows(scales)


def unpack(rows: Array, kind: GGMLType, layout: Layout) -> tuple[Array, Array, Array | None]:
    """Take rows uint8 [out_features, bytes] apart into what `GroupedInt` or `Codebook4` holds.

    Returns codes (two to a byte up to 4 bits), and scales and minimums [out_features, groups]: float16 where that is
    exact for all of them, else float32. Memory beyond the result is bounded, whatever the size.
    """
    blocks = rows.reshape(-1, kind.size)
    groups = kind.block // layout.group_size
    code_bytes = kind.block // 2 if layout.bits <= 4 else kind.block
    codes = np.empty((len(blocks), code_bytes), np.uint8)
    scales = np.empty((len(blocks), groups), np.float32)
    minimums = None if layout.codebook else np.empty_like(scales)
    step = _PIECE_ELEMENTS // kind.block
    with np.errstate(all="ignore"):  # damaged scales may be infinite; that is for whoever multiplies to see
        for start in range(0, len(blocks), step):
            piece = slice(start, start + step)
            elements, scales[piece], low = layout.split(blocks[piece])
            codes[piece] = _pack(elements).reshape(-1, code_bytes) if layout.bits <= 4 else elements
            if minimums is not None:
                minimums[piece] = low
        if layout.half:
            scales, minimums = _narrowed(scales, minimums)
    shape = (len(rows), -1)
    return codes.reshape(shape), scales.reshape(shape), None if minimums is None else minimums.reshape(shape)


def _narrowed(scales: Array, minimums: Array | None) -> tuple[Array, Array | None]:
    """Return both as float16 where nothing is lost: a minimum is a multiple of its scale, and may overflow."""
    if minimums is None:
        return scales.astype(np.float16), None
    narrow = minimums.astype(np.float16)
    return (scales.astype(np.float16), narrow) if np.array_equal(narrow, minimums) else (scales, minimums)


def _pack(codes: Array) -> Array:
    """Put codes of at most 4 bits two to a byte, the first in the low nibble."""
    pairs = codes.reshape(-1).view("<u2")
    return (pairs | (pairs >> 4)).astype(np.uint8)


def half(part: Array) -> Array:
    """Read float16 bytes [n, 2k] as float32 [n, k]."""
    return np.ascontiguousarray(part).view("<f2").astype(np.float32)


def fields(part: Array, run: int, bits: int) -> Array:
    """Cut each byte into fields of `bits`: of a run of bytes first all lowest fields, then all next, and so on."""
    part = np.ascontiguousarray(part)
    count = 8 // bits
    out = np.empty((len(part), part.shape[1] // run, count, run), np.uint8)
    runs = part.reshape(len(part), -1, run)
    for field in range(count):
        np.right_shift(runs, field * bits, out=out[:, :, field])
    out &= (1 << bits) - 1
    return out.reshape(len(part), -1)
