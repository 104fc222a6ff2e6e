"""Codes of 2, 3, 4 and 8 bits in 32-bit words, as GPTQ packs them: a stream of bits, the lowest first.

Weights are packed along the input, zero points along the output. Codes of 3 bits run over the ends of words. Knows no
tensor names. Source: `pack` of the linear layers of AutoGPTQ and GPTQModel.
"""

import numpy as np

_ROWS_AT_ONCE = 512
_TWO_BITS = (np.arange(256)[:, None] >> np.array([0, 2, 4, 6])).astype(np.uint8) & 3
_PAIRS = np.stack([_TWO_BITS[:, 0] | _TWO_BITS[:, 1] << 4, _TWO_BITS[:, 2] | _TWO_BITS[:, 3] << 4], axis=-1)
"""A byte of four 2-bit codes -> two bytes of two 4-bit ones."""


def nibbles(words: np.ndarray, bits: int) -> np.ndarray:
    """Return codes of at most 4 bits as pairs, the even one in the low nibble: what `GroupedInt` holds.

    `words` is int32 [n, width * bits / 32], C-contiguous; the result is uint8 [n, width / 2].
    """
    data = words.view(np.uint8)
    if bits == 4:
        return data
    if bits == 2:
        return _PAIRS[data].reshape(len(data), -1)
    three = data.reshape(len(data), -1, 3).astype(np.uint32)
    eight = three[..., 0] | three[..., 1] << 8 | three[..., 2] << 16  # eight codes of 3 bits
    out = np.empty((*eight.shape, 4), np.uint8)
    for pair in range(4):
        two = eight >> 6 * pair
        out[..., pair] = two & 7 | (two & 56) << 1
    return out.reshape(len(data), -1)


def codes(words: np.ndarray, bits: int) -> np.ndarray:
    """Return one code per byte: uint8 [n, width] for int32 [n, width * bits / 32], C-contiguous."""
    if bits == 8:
        return words.view(np.uint8)
    packed = nibbles(words, bits)
    out = np.empty((len(packed), 2 * packed.shape[1]), np.uint8)
    out[:, 0::2], out[:, 1::2] = packed & 15, packed >> 4
    return out


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Undo `codes`: return int32 [n, width * bits / 32] for uint8 [n, width]."""
    out = np.empty((len(codes), codes.shape[1] * bits // 32), "<i4")
    for first in range(0, len(codes), _ROWS_AT_ONCE):  # a byte for every bit
        part = codes[first : first + _ROWS_AT_ONCE]
        bit = part[..., None] >> np.arange(bits, dtype=np.uint8) & 1
        out[first : first + len(part)] = np.packbits(bit.reshape(len(part), -1), axis=1, bitorder="little").view("<i4")
    return out


def zero_points(words: np.ndarray, bits: int, *, minus_one: bool) -> np.ndarray:
    """Return zero points uint8 [groups, out_features], of words that hold them, or hold them less one.

    Libraries subtract from whole words (all but those of 3 bits), so that a zero point of 0 borrows from the next: the
    sum of words is undone by a sum of words.
    """
    words = np.ascontiguousarray(words)
    if not minus_one:
        return codes(words, bits)
    if bits == 3:
        return codes(words, bits) + 1 & 7
    ones = np.uint32(sum(1 << shift for shift in range(0, 32, bits)))
    return codes((words.view(np.uint32) + ones).view(np.int32), bits)
