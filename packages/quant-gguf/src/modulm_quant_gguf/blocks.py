"""Takes ggml's blocks apart: raw rows -> what `GroupedInt` and `Codebook4` hold.

All in numpy and exact: scale * code + minimum, each step rounded to float32, is what gguf's dequantisation gives, bit
for bit (only a zero may lose its sign). Knows no tensors and no files; `scheme.py` calls it. Source of the layouts:
ggml-common.h, and quants.py of the `gguf` package.
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
    codebook: tuple[int, ...] | None = None


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


def _half(part: Array) -> Array:
    """Read float16 bytes [n, 2k] as float32 [n, k]."""
    return np.ascontiguousarray(part).view("<f2").astype(np.float32)


def _fields(part: Array, run: int, bits: int) -> Array:
    """Cut each byte into fields of `bits`: of a run of bytes first all lowest fields, then all next, and so on."""
    part = np.ascontiguousarray(part)
    fields = 8 // bits
    out = np.empty((len(part), part.shape[1] // run, fields, run), np.uint8)
    runs = part.reshape(len(part), -1, run)
    for field in range(fields):
        np.right_shift(runs, field * bits, out=out[:, :, field])
    out &= (1 << bits) - 1
    return out.reshape(len(part), -1)


def _signed(scale: Array, zero: int) -> tuple[Array, Array]:
    return scale, scale * np.float32(-zero)


def _q4_0(blocks: Array) -> tuple[Array, Array, Array]:
    return _fields(blocks[:, 2:], 16, 4), *_signed(_half(blocks[:, :2]), 8)


def _q4_1(blocks: Array) -> tuple[Array, Array, Array]:
    return _fields(blocks[:, 4:], 16, 4), _half(blocks[:, :2]), _half(blocks[:, 2:4])


def _five_bits(high: Array, low: Array) -> Array:
    return _fields(low, 16, 4) | np.unpackbits(high, axis=1, bitorder="little") << 4


def _q5_0(blocks: Array) -> tuple[Array, Array, Array]:
    return _five_bits(blocks[:, 2:6], blocks[:, 6:]), *_signed(_half(blocks[:, :2]), 16)


def _q5_1(blocks: Array) -> tuple[Array, Array, Array]:
    return _five_bits(blocks[:, 4:8], blocks[:, 8:]), _half(blocks[:, :2]), _half(blocks[:, 2:4])


def _q8_0(blocks: Array) -> tuple[Array, Array, Array]:
    return blocks[:, 2:] ^ 0x80, *_signed(_half(blocks[:, :2]), 128)


def _q2_k(blocks: Array) -> tuple[Array, Array, Array]:
    packed = blocks[:, :16]
    scales = _half(blocks[:, 80:82]) * (packed & 15)
    return _fields(blocks[:, 16:80], 32, 2), scales, -(_half(blocks[:, 82:84]) * (packed >> 4))


def _q3_k(blocks: Array) -> tuple[Array, Array, Array]:
    low, high = _fields(blocks[:, 96:104], 8, 4), _fields(blocks[:, 104:108], 4, 2)
    scales = _half(blocks[:, 108:]) * ((low | high << 4).astype(np.float32) - 32)
    codes = _fields(blocks[:, 32:96], 32, 2) | _fields(blocks[:, :32], 32, 1) << 2
    return codes, *_signed(scales, 4)


def _k_scales(blocks: Array) -> tuple[Array, Array]:
    """Scales and minimums of Q4_K and Q5_K: 8 of each, 6 bits wide, in bytes 4 to 16."""
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, rest & 15 | first >> 2 & 0x30], axis=1)
    minimums = np.concatenate([second & 63, rest >> 4 | second >> 2 & 0x30], axis=1)
    return _half(blocks[:, :2]) * scales, -(_half(blocks[:, 2:4]) * minimums)


def _q4_k(blocks: Array) -> tuple[Array, Array, Array]:
    return _fields(blocks[:, 16:], 32, 4), *_k_scales(blocks)


def _q5_k(blocks: Array) -> tuple[Array, Array, Array]:
    return _fields(blocks[:, 48:], 32, 4) | _fields(blocks[:, 16:48], 32, 1) << 4, *_k_scales(blocks)


def _q6_k(blocks: Array) -> tuple[Array, Array, Array]:
    codes = _fields(blocks[:, :128], 64, 4) | _fields(blocks[:, 128:192], 32, 2) << 4
    return codes, *_signed(_half(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8), 32)


def _iq4_nl(blocks: Array) -> tuple[Array, Array, None]:
    return _fields(blocks[:, 2:], 16, 4), _half(blocks[:, :2]), None


def _iq4_xs(blocks: Array) -> tuple[Array, Array, None]:
    high = _fields(blocks[:, 2:4], 1, 2)
    low = _fields(blocks[:, 4:8], 1, 4)
    scales = _half(blocks[:, :2]) * ((low | high << 4).astype(np.float32) - 32)
    return _fields(blocks[:, 8:], 16, 4), scales, None


def _mxfp4(blocks: Array) -> tuple[Array, Array, None]:
    exponent = blocks[:, :1].astype(np.int32)
    return _fields(blocks[:, 1:], 16, 4), np.ldexp(np.float32(1), exponent - 128), None


def _nvfp4(blocks: Array) -> tuple[Array, Array, None]:
    packed = blocks[:, :4]
    exponent, fraction = (packed >> 3 & 15).astype(np.int32), (packed & 7).astype(np.float32)
    scales = np.where(exponent == 0, fraction / 8 * 2, 1 + fraction / 8) * np.ldexp(np.float32(1), exponent - 8)
    scales[(packed == 0) | (packed == 0x7F)] = 0
    return _fields(blocks[:, 4:], 8, 4), scales, None


_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the values; the scales are halved

LAYOUTS = {
    "Q4_0": Layout(4, 32, _q4_0, half=True),
    "Q4_1": Layout(4, 32, _q4_1, half=True),
    "Q5_0": Layout(5, 32, _q5_0, half=True),
    "Q5_1": Layout(5, 32, _q5_1, half=True),
    "Q8_0": Layout(8, 32, _q8_0, half=True),
    "Q2_K": Layout(2, 16, _q2_k),
    "Q3_K": Layout(3, 16, _q3_k),
    "Q4_K": Layout(4, 32, _q4_k),
    "Q5_K": Layout(5, 32, _q5_k),
    "Q6_K": Layout(6, 16, _q6_k),
    "IQ4_NL": Layout(4, 32, _iq4_nl, half=True, codebook=_NL),
    "IQ4_XS": Layout(4, 32, _iq4_xs, codebook=_NL),
    "MXFP4": Layout(4, 32, _mxfp4, codebook=_E2M1),
    "NVFP4": Layout(4, 16, _nvfp4, codebook=_E2M1),
}
