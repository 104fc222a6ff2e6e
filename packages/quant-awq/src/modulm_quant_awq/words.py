"""Codes of 4 bits in 32-bit words, as AWQ packs them: eight outputs of one input, in the order of its GPU kernel.

Knows no tensor names. Source: `WQLinear_GEMM` and `WQLinear_GEMV` of AutoAWQ.
"""

import numpy as np

_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble k of a word, the lowest first, belongs to output _PLACES[k] of its eight."""


def columns(words: np.ndarray) -> np.ndarray:
    """Return codes uint8 [n, out_features] of words int32 [n, out_features / 8]."""
    out = np.empty((*words.shape, 8), np.uint8)
    for nibble, place in enumerate(_PLACES):
        out[..., place] = words >> 4 * nibble & 15
    return out.reshape(len(words), -1)


def packed(codes: np.ndarray) -> np.ndarray:
    """Undo `columns`: return words int32 [n, out_features / 8] of codes uint8 [n, out_features]."""
    out = np.zeros((len(codes), codes.shape[1] // 8), np.uint32)
    for nibble, place in enumerate(_PLACES):
        out |= codes[:, place::8].astype(np.uint32) << np.uint32(4 * nibble)
    return out.view(np.int32)


def transposed(words: np.ndarray) -> np.ndarray:
    """Return what `GroupedInt` holds, uint8 [out_features, in_features / 2], of int32 [in_features, out_features / 8].

    Inputs 2i and 2i + 1 share a byte, the even one in the low nibble.
    """
    even, odd = words[0::2], words[1::2]
    out = np.empty((words.shape[1], 8, len(even)), np.uint8)
    for nibble, place in enumerate(_PLACES):
        out[:, place] = ((even >> 4 * nibble & 15) | (odd >> 4 * nibble & 15) << 4).T
    return out.reshape(-1, len(even))


def in_order(words: np.ndarray) -> np.ndarray:
    """Return codes uint8 [n, 8 * width] of words int32 [n, width] whose nibbles are in order, the lowest first."""
    data = np.ascontiguousarray(words).view(np.uint8)
    return np.stack([data & 15, data >> 4], axis=-1).reshape(len(words), -1)
