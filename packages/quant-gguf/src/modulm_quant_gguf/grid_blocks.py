"""The importance-matrix and ternary types: vectors of 4 or 8 numbers out of a grid, several numbers to a byte.

A grid is a short list of all vectors that a type can hold; what is stored is a place in it, and signs beside it. IQ1
has no signs but shifts all numbers of a vector, up or down: its list has both. The grids are data of the `gguf`
package. `layouts.py` makes weights of the parts. Source: ggml-common.h, and quants.py of `gguf`.
"""

from functools import cache

import numpy as np

from modulm_quant_gguf.layouts import Array, Layout, VectorLayout, fields, half

Vectors = tuple[Array, Array, Array]


@cache
def _grid(name: str) -> Array:
    """Return the vectors of a type's grid, float32 [vectors, length]."""
    import gguf

    kind = getattr(gguf.quants, name)
    kind.init_grid()
    vectors: Array = kind.grid.reshape(kind.grid_shape[-2:]).astype(np.float32)
    return vectors


@cache
def _shifted_grid(name: str) -> Array:
    """Return the vectors of a grid an eighth larger, then all an eighth smaller."""
    return np.concatenate([_grid(name) + np.float32(0.125), _grid(name) - np.float32(0.125)])


# Stored with 7 bits, the eighth makes their number even.
_EVEN = np.array([seven | (seven.bit_count() & 1) << 7 for seven in range(128)], np.uint8)
_SHIFTS = np.array([0, 7, 14, 21], np.uint32)


def _nibbles(part: Array) -> Array:
    return fields(part, 1, 4).astype(np.float32)


def _words(part: Array, dtype: str) -> Array:
    return np.ascontiguousarray(part).view(dtype)


def _even_signs(words: Array) -> Array:
    """Four times 7 bits of each word [n, w] -> signs [n, 4 * w]."""
    return _EVEN[(words[..., None] >> _SHIFTS) & 127].reshape(len(words), -1)


def _iq2_xxs(blocks: Array) -> Vectors:
    pairs = _words(blocks[:, 2:], "<u4").reshape(len(blocks), 8, 2)
    index = _words(pairs[..., 0], "u1")
    scales = half(blocks[:, :2]) * (np.float32(0.5) + (pairs[..., 1] >> 28)) * np.float32(0.25)
    return index, _even_signs(pairs[..., 1]), scales


def _iq2_xs(blocks: Array) -> Vectors:
    words = _words(blocks[:, 2:66], "<u2")
    scales = half(blocks[:, :2]) * (np.float32(0.5) + _nibbles(blocks[:, 66:])) * np.float32(0.25)
    return words & 511, _EVEN[words >> 9], scales


def _iq2_s(blocks: Array) -> Vectors:
    index = blocks[:, 2:34] | fields(blocks[:, 66:74], 1, 2).astype(np.uint16) << 8
    scales = half(blocks[:, :2]) * (np.float32(0.5) + _nibbles(blocks[:, 74:])) * np.float32(0.25)
    return index, blocks[:, 34:66], scales


def _iq3_xxs(blocks: Array) -> Vectors:
    words = _words(blocks[:, 66:], "<u4")
    scales = half(blocks[:, :2]) * (np.float32(0.5) + (words >> 28)) * np.float32(0.5)
    return blocks[:, 2:66], _even_signs(words), scales


def _iq3_s(blocks: Array) -> Vectors:
    index = blocks[:, 2:66] | fields(blocks[:, 66:74], 1, 1).astype(np.uint16) << 8
    scales = half(blocks[:, :2]) * (1 + 2 * _nibbles(blocks[:, 106:]))
    return index, blocks[:, 74:106], scales


def _iq1_s(blocks: Array) -> Vectors:
    words = _words(blocks[:, 34:], "<u2")
    high = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16)) & 7
    index = blocks[:, 2:34] | (high << 8).reshape(len(blocks), -1)
    scales = half(blocks[:, :2]) * (2 * (words >> 12 & 7) + 1)
    is_lower = (words >> 15 << 11).repeat(4, axis=1)  # all 32 numbers
    return index | is_lower, blocks[:, :0], scales


def _iq1_m(blocks: Array) -> Vectors:
    words = _words(blocks[:, 48:], "<u2")
    # The block's own scale, a float16, is in the highest four bits of each word.
    first, second, third, fourth = (words >> 12).T
    scale = _words((first | second << 4 | third << 8 | fourth << 12)[:, None], "<f2").astype(np.float32)
    steps = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(blocks), -1)
    high = fields(blocks[:, 32:48], 1, 4)
    index = blocks[:, :32] | (high & 7).astype(np.uint16) << 8
    return index | (high & 8).astype(np.uint16) << 8, blocks[:, :0], scale * (2 * steps + 1)


def _ternary(codes: Array, scales: Array) -> tuple[Array, Array, Array]:
    return codes, scales, -scales


def _tq1_0(blocks: Array) -> tuple[Array, Array, Array]:
    # A byte is 5 digits of base 3 as a fraction of 256: times 3 the first is what goes over.
    parts = ((blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4))
    digits = [(part * np.uint8(3**place)).astype(np.uint16) * 3 >> 8 for part, count in parts for place in range(count)]
    return _ternary(np.concatenate(digits, axis=1).astype(np.uint8), half(blocks[:, 52:]))


def _tq2_0(blocks: Array) -> tuple[Array, Array, Array]:
    return _ternary(fields(blocks[:, :64], 32, 2), half(blocks[:, 64:]))


LAYOUTS: dict[str, Layout | VectorLayout] = {
    "IQ1_S": VectorLayout(32, _iq1_s, _shifted_grid, signed=False),
    "IQ1_M": VectorLayout(16, _iq1_m, _shifted_grid, signed=False),
    "IQ2_XXS": VectorLayout(32, _iq2_xxs, _grid),
    "IQ2_XS": VectorLayout(16, _iq2_xs, _grid),
    "IQ2_S": VectorLayout(16, _iq2_s, _grid),
    "IQ3_XXS": VectorLayout(32, _iq3_xxs, _grid),
    "IQ3_S": VectorLayout(32, _iq3_s, _grid),
    "TQ1_0": Layout(2, 256, _tq1_0, half=True),
    "TQ2_0": Layout(2, 256, _tq2_0, half=True),
}
