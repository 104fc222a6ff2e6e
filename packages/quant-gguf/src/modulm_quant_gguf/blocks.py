"""The types that store numbers one by one: where each has its codes, scales and minimums.

Knows bits; what is made of the parts is in `layouts.py`, types that store numbers several at once in `grid_blocks.py`.
Source: ggml-common.h, and quants.py of the `gguf` package.
"""

import numpy as np

from modulm_quant_gguf.layouts import Array, Layout, fields, half


def _signed(scale: Array, zero: int) -> tuple[Array, Array]:
    return scale, scale * np.float32(-zero)


def _q4_0(blocks: Array) -> tuple[Array, Array, Array]:
    return fields(blocks[:, 2:], 16, 4), *_signed(half(blocks[:, :2]), 8)


def _q4_1(blocks: Array) -> tuple[Array, Array, Array]:
    return fields(blocks[:, 4:], 16, 4), half(blocks[:, :2]), half(blocks[:, 2:4])


def _five_bits(high: Array, low: Array) -> Array:
    return fields(low, 16, 4) | np.unpackbits(high, axis=1, bitorder="little") << 4


def _q5_0(blocks: Array) -> tuple[Array, Array, Array]:
    return _five_bits(blocks[:, 2:6], blocks[:, 6:]), *_signed(half(blocks[:, :2]), 16)


def _q5_1(blocks: Array) -> tuple[Array, Array, Array]:
    return _five_bits(blocks[:, 4:8], blocks[:, 8:]), half(blocks[:, :2]), half(blocks[:, 2:4])


def _q8_0(blocks: Array) -> tuple[Array, Array, Array]:
    return blocks[:, 2:] ^ 0x80, *_signed(half(blocks[:, :2]), 128)


def _q2_k(blocks: Array) -> tuple[Array, Array, Array]:
    packed = blocks[:, :16]
    scales = half(blocks[:, 80:82]) * (packed & 15)
    return fields(blocks[:, 16:80], 32, 2), scales, -(half(blocks[:, 82:84]) * (packed >> 4))


def _q3_k(blocks: Array) -> tuple[Array, Array, Array]:
    low, high = fields(blocks[:, 96:104], 8, 4), fields(blocks[:, 104:108], 4, 2)
    scales = half(blocks[:, 108:]) * ((low | high << 4).astype(np.float32) - 32)
    codes = fields(blocks[:, 32:96], 32, 2) | fields(blocks[:, :32], 32, 1) << 2
    return codes, *_signed(scales, 4)


def _k_scales(blocks: Array) -> tuple[Array, Array]:
    """Scales and minimums of Q4_K and Q5_K: 8 of each, 6 bits wide, in bytes 4 to 16."""
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, rest & 15 | first >> 2 & 0x30], axis=1)
    minimums = np.concatenate([second & 63, rest >> 4 | second >> 2 & 0x30], axis=1)
    return half(blocks[:, :2]) * scales, -(half(blocks[:, 2:4]) * minimums)


def _q4_k(blocks: Array) -> tuple[Array, Array, Array]:
    return fields(blocks[:, 16:], 32, 4), *_k_scales(blocks)


def _q5_k(blocks: Array) -> tuple[Array, Array, Array]:
    return fields(blocks[:, 48:], 32, 4) | fields(blocks[:, 16:48], 32, 1) << 4, *_k_scales(blocks)


def _q6_k(blocks: Array) -> tuple[Array, Array, Array]:
    codes = fields(blocks[:, :128], 64, 4) | fields(blocks[:, 128:192], 32, 2) << 4
    return codes, *_signed(half(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8), 32)


def _iq4_nl(blocks: Array) -> tuple[Array, Array, None]:
    return fields(blocks[:, 2:], 16, 4), half(blocks[:, :2]), None


def _iq4_xs(blocks: Array) -> tuple[Array, Array, None]:
    high = fields(blocks[:, 2:4], 1, 2)
    low = fields(blocks[:, 4:8], 1, 4)
    scales = half(blocks[:, :2]) * ((low | high << 4).astype(np.float32) - 32)
    return fields(blocks[:, 8:], 16, 4), scales, None


def _mxfp4(blocks: Array) -> tuple[Array, Array, None]:
    exponent = blocks[:, :1].astype(np.int32)
    return fields(blocks[:, 1:], 16, 4), np.ldexp(np.float32(1), exponent - 128), None


def _nvfp4(blocks: Array) -> tuple[Array, Array, None]:
    packed = blocks[:, :4]
    exponent, fraction = (packed >> 3 & 15).astype(np.int32), (packed & 7).astype(np.float32)
    scales = np.where(exponent == 0, fraction / 8 * 2, 1 + fraction / 8) * np.ldexp(np.float32(1), exponent - 8)
    scales[(packed == 0) | (packed == 0x7F)] = 0
    return fields(blocks[:, 4:], 8, 4), scales, None


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
