"""How activations are rounded for products with integers: the rule of `native/quantize_activations.hpp` in numpy."""

from typing import NamedTuple

import numpy as np

SMALLEST = np.float32(2.0**-100)


class Quantized(NamedTuple):
    """Activations [rows, groups, group] as whole numbers, with a float32 scale for each group."""

    codes: np.ndarray
    high: np.ndarray
    scales: np.ndarray

    def values(self, size):
        """Return [rows, size] in float64."""
        whole = self.codes.astype(np.float64) * self.scales[..., None]
        return whole.reshape(len(whole), -1)[:, :size]


def quantized(x, group):
    """Round finite float32 activations [rows, size] in groups."""
    padded = np.zeros((len(x), -(-x.shape[1] // group) * group), np.float32)
    padded[:, : x.shape[1]] = x
    grouped = padded.reshape(len(x), -1, group)
    quads = np.abs(grouped).reshape(*grouped.shape[:2], -1, 4).max(-1)
    first = quads.max(-1)
    second = np.sort(quads, -1)[..., -2]
    with np.errstate(all="ignore"):
        mean = np.add.accumulate(first, -1, dtype=np.float32)[:, -1:] / np.float32(first.shape[1])
        pays = (first - second) / mean * (first + second) > mean
        limit = np.where(pays, np.maximum(second, first / np.float32(127)), first)
        codes = np.rint(grouped * (np.float32(127) / limit)[..., None])
    is_zero = first < SMALLEST
    codes = np.where(is_zero[..., None], 0, codes).astype(np.int32)
    is_high = np.repeat(pays[..., None] & (quads > limit[..., None]), 4, -1)
    high = np.where(is_high, (codes + 64) >> 7, 0)
    return Quantized(codes, high, np.where(is_zero, np.float32(0), limit / np.float32(127)))
