"""Scales of two levels: whole multiples of coarser ones, found again in the products (GGUF's K types: 256 inputs).

So memory holds what the file does, a byte for a group and 16 bits for a span of them, and not float32 for each. Knows
arrays, no kinds: `packed_int8.py` asks.
"""

from typing import NamedTuple

import numpy as np

_SPAN_INPUTS = 256
_LEAST_GROUPS = 4
_MOST_SHIFT = 24


class Steps(NamedTuple):
    """Scales, and minimums where there are some: unit * coarse * multiple, exactly.

    Attributes:
        span: Groups per coarse scale.
        unit: A power of two.
        coarse: float16 [rows, groups / span], of scales and of minimums.
        multiples: int8 [rows, groups] of each; or one array of both, uint8: those of scales in the low nibble.
    """

    span: int
    unit: float
    coarse: tuple[np.ndarray, ...]
    multiples: tuple[np.ndarray, ...]

    @property
    def in_nibbles(self) -> bool:
        """Whether one byte holds the multiples of a scale and of a minimum."""
        return len(self.multiples) < len(self.coarse)


def find_steps(group_size: int, *numbers: np.ndarray) -> Steps | None:
    """Take scales, or scales and minimums, float32 [rows, groups], apart; None where they are no such multiples."""
    span = _SPAN_INPUTS // group_size
    if span < _LEAST_GROUPS or _SPAN_INPUTS % group_size or numbers[0].shape[1] % span:
        return None
    found = [_multiples(np.ascontiguousarray(array, np.float32), span) for array in numbers]
    coarse, multiples = (tuple(part[which] for part in found if part is not None) for which in (0, 1))
    if len(coarse) < len(numbers):
        return None
    shift = next((shift for shift in range(_MOST_SHIFT) if _fit(coarse, shift)), None)
    if shift is None:
        return None
    if len(multiples) == 2 and all((array >= 0).all() and (array < 16).all() for array in multiples):
        multiples = ((multiples[0] | multiples[1] << 4).view(np.uint8),)
    return Steps(span, 2.0**-shift, tuple(_halves(array, shift) for array in coarse), multiples)


def _multiples(numbers: np.ndarray, span: int) -> tuple[np.ndarray, np.ndarray] | None:
    from modulm_kernels_cpu import _native

    rows, groups = numbers.shape
    multiples, coarse = np.empty((rows, groups), np.int8), np.empty((rows, groups // span), np.float32)
    addresses = multiples.ctypes.data, coarse.ctypes.data
    return (coarse, multiples) if _native.steps_of_scales(numbers.ctypes.data, rows, groups, span, *addresses) else None


def _halves(coarse: np.ndarray, shift: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        return (coarse * np.float32(2.0**shift)).astype(np.float16)


def _fit(coarse: tuple[np.ndarray, ...], shift: int) -> bool:
    return all(np.array_equal(_halves(array, shift) * np.float32(2.0**-shift), array) for array in coarse)
