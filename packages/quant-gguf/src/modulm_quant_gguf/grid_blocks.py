"""The importance-matrix and ternary types: vectors of 4 or 8 numbers out of a grid, several numbers to a byte.

A grid is a short list of all vectors that a type can hold; what is stored is a place in it, and signs beside it. All
magnitudes of a type fit 8 codes, so that code + 8 * sign is a place in a codebook of 16 values, exactly. The grids are
data of the `gguf` package. `layouts.py` makes weights of the parts. Source: ggml-common.h, and quants.py of `gguf`.
"""

from functools import cache

import numpy as np

from modulm_quant_gguf.layouts import Array, Layout, fields, half

Split = tuple[Array, Array, None]


@cache
def _grid(name: str) -> Array:
    """Return the vectors of a type's grid: places of their numbers in its codebook, a vector as one integer."""
    import gguf

    kind = getattr(gguf.quants, name)
    kind.init_grid()
    codes = np.searchsorted(np.array(kind.grid_map), kind.grid.reshape(kind.grid_shape)).astype(np.uint8)
    return codes.view(f"<u{codes.shape[1]}").reshape(-1)


# Eight signs are a byte, the first the lowest: as a vector, 8 where the number is negative.
_BYTES = np.arange(256, dtype=np.uint8)[:, None]
_SIGNS = (np.unpackbits(_BYTES, axis=1, bitorder="little") << 3).view("<u8").reshape(-1)
# Stored with 7 bits, the eighth makes their number even.
_EVEN = np.array([seven | (seven.bit_count() & 1) << 7 for seven in range(128)], np.uint8)
_SHIFTS = np.array([0, 7, 14, 21], np.uint32)


def _codes(name: str, index: Array, signs: Array) -> Array:
    """Put vectors `index` [n, v] of a grid under `signs` [n, w], a byte for eight numbers: codes uint8 [n, 8 * w]."""
    vectors = _grid(name)[index].view(np.uint8).reshape(len(signs), -1).view("<u8")
    return (vectors | _SIGNS[signs]).view(np.uint8)


def _nibbles(part: Array) -> Array:
    return fields(part, 1, 4).astype(np.float32)


def _words(part: Array, dtype: str) -> Array:
    return np.ascontiguousarray(part).view(dtype)


def _even_signs(words: Array) -> Array:
    """Four times 7 bits of each word [n, w] -> signs [n, 4 * w]."""
    return _EVEN[(words[..., None] >> _SHIFTS) & 127].reshape(len(words), -1)


def _iq2_xxs(blocks: Array) -> Split:
    pairs = _words(blocks[:, 2:], "<u4").reshape(len(blocks), 8, 2)
    index = _words(pairs[..., 0], "u1")
    scales = half(blocks[:, :2]) * (np.float32(0.5) + (pairs[..., 1] >> 28)) * np.float32(0.25)
    return _codes("IQ2_XXS", index, _even_signs(pairs[..., 1])), scales.astype(np.float32), None


def _iq2_xs(blocks: Array) -> Split:
    words = _words(blocks[:, 2:66], "<u2")
    scales = half(blocks[:, :2]) * (np.float32(0.5) + _nibbles(blocks[:, 66:])) * np.float32(0.25)
    return _codes("IQ2_XS", words & 511, _EVEN[words >> 9]), scales, None


def _iq2_s(blocks: Array) -> Split:
    index = blocks[:, 2:34] | fields(blocks[:, 66:74], 1, 2).astype(np.uint16) << 8
    scales = half(blocks[:, :2]) * (np.float32(0.5) + _nibbles(blocks[:, 74:])) * np.float32(0.25)
    return _codes("IQ2_S", index, blocks[:, 34:66]), scales, None


def _iq3_xxs(blocks: Array) -> Split:
    words = _words(blocks[:, 66:], "<u4")
    scales = half(blocks[:, :2]) * (np.float32(0.5) + (words >> 28)) * np.float32(0.5)
    return _codes("IQ3_XXS", blocks[:, 2:66], _even_signs(words)), scales.astype(np.float32), None


def _iq3_s(blocks: Array) -> Split:
    index = blocks[:, 2:66] | fields(blocks[:, 66:74], 1, 1).astype(np.uint16) << 8
    scales = half(blocks[:, :2]) * (1 + 2 * _nibbles(blocks[:, 106:]))
    return _codes("IQ3_S", index, blocks[:, 74:106]), scales, None


def _iq1_s(blocks: Array) -> Split:
    words = _words(blocks[:, 34:], "<u2")
    high = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16)) & 7
    index = blocks[:, 2:34] | (high << 8).reshape(len(blocks), -1)
    scales = half(blocks[:, :2]) * (2 * (words >> 12 & 7) + 1)
    shifted = np.where(words >> 15, 255, 0).repeat(4, axis=1)  # all 32 numbers one way
    return _codes("IQ1_S", index, shifted), scales.astype(np.float32), None


def _iq1_m(blocks: Array) -> Split:
    words = _words(blocks[:, 48:], "<u2")
    # The block's own scale, a float16, is in the highest four bits of each word.
    first, second, third, fourth = (words >> 12).T
    scale = _words((first | second << 4 | third << 8 | fourth << 12)[:, None], "<f2").astype(np.float32)
    steps = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(blocks), -1)
    high = fields(blocks[:, 32:48], 1, 4)
    index = blocks[:, :32] | (high & 7).astype(np.uint16) << 8
    return _codes("IQ1_M", index, np.where(high & 8, 255, 0)), (scale * (2 * steps + 1)).astype(np.float32), None


def _ternary(codes: Array, scales: Array) -> tuple[Array, Array, Array]:
    return codes, scales, -scales


def _tq1_0(blocks: Array) -> tuple[Array, Array, Array]:
    # A byte is 5 digits of base 3 as a fraction of 256: times 3 the first is what goes over.
    parts = ((blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4))
    digits = [(part * np.uint8(3**place)).astype(np.uint16) * 3 >> 8 for part, count in parts for place in range(count)]
    return _ternary(np.concatenate(digits, axis=1).astype(np.uint8), half(blocks[:, 52:]))


def _tq2_0(blocks: Array) -> tuple[Array, Array, Array]:
    return _ternary(fields(blocks[:, :64], 32, 2), half(blocks[:, 64:]))


def _both_signs(*magnitudes: int) -> tuple[float, ...]:
    return tuple(sign * number for sign in (1.0, -1.0) for number in (*magnitudes, *[0] * (8 - len(magnitudes))))


_IQ2 = _both_signs(8, 25, 43)
_IQ3_XXS = _both_signs(4, 12, 20, 28, 36, 44, 52, 62)
_IQ3_S = _both_signs(1, 3, 5, 7, 9, 11, 13, 15)
# -1, 0 and 1, all shifted by an eighth: up, or down where the sign is set.
_IQ1 = (-0.875, 0.125, 1.125, *[0.0] * 5, -1.125, -0.125, 0.875, *[0.0] * 5)

LAYOUTS = {
    "IQ1_S": Layout(4, 32, _iq1_s, codebook=_IQ1),
    "IQ1_M": Layout(4, 16, _iq1_m, codebook=_IQ1),
    "IQ2_XXS": Layout(4, 32, _iq2_xxs, codebook=_IQ2),
    "IQ2_XS": Layout(4, 16, _iq2_xs, codebook=_IQ2),
    "IQ2_S": Layout(4, 16, _iq2_s, codebook=_IQ2),
    "IQ3_XXS": Layout(4, 32, _iq3_xxs, codebook=_IQ3_XXS),
    "IQ3_S": Layout(4, 32, _iq3_s, codebook=_IQ3_S),
    "TQ1_0": Layout(2, 256, _tq1_0, half=True),
    "TQ2_0": Layout(2, 256, _tq2_0, half=True),
}
