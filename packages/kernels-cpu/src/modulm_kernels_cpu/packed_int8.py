"""Weights of 2 to 8 bits in panels, multiplied by integer activations: `GroupedInt` and `ChannelInt8`.

"fast" quantises activations in groups of 32 inputs (16 where a weight's group is no multiple of 32), to 8 bits but for
single large ones, and adds up exact integers; "exact" multiplies float32 activations by dequantised weights, slowly, to
tell one error from another. The layout is in `native/linear_int8.hpp`. Knows nothing of when these kernels are asked:
see `provider.py`.
"""

import os
from typing import Any, NamedTuple

import numpy as np

from modulm.interfaces.quantization import ChannelInt8, Codebook4, GroupedInt, Weight
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_kernels_cpu.packed_dense import PackedMatrix, with_precision
from modulm_kernels_cpu.scale_steps import find_steps
from modulm_kernels_cpu.weight_arrays import FLOATS, fit_half, plain, require, same_type, zero_point, zero_points

_SHIFT, _PRODUCT, _MINIMUMS, _POINTS = range(4)
"""`Zero` in linear_int8.hpp: how codes become numbers."""
_TABLE = 16
"""Beside bits: codes are places in a table (`Codes` in linear_int8.hpp)."""
_MOST_PAIRED = 4
"""Codes of so many bits come two to a byte."""


def supports(weight: Weight) -> Support:
    """Say whether `pack` serves this weight."""
    if isinstance(weight, ChannelInt8):
        return Accepted("8-bit weights")
    if not isinstance(weight, GroupedInt):
        return Rejected(f"{type(weight).__name__} is no kind of integers with scales")
    if not 2 <= weight.bits <= 8:
        return Rejected(f"it takes 2 to 8 bits, not {weight.bits}")
    if weight.bits <= _MOST_PAIRED and weight.in_features % 2:
        return Rejected(f"{weight.in_features} inputs are no whole number of bytes")
    group = weight.group_size
    if group % 16 != 0 and group != weight.in_features:
        return Rejected(f"groups of {group} inputs are neither a multiple of 16 nor a whole row")
    return Accepted(f"{weight.bits}-bit weights")


def pack(weight: Weight, precision: str = "") -> PackedMatrix:
    """Copy the weight into panels; its arrays are no longer needed then.

    `precision` is "fast" or "exact"; empty means what MODULM_KERNEL_PRECISION says, and "fast" where it says nothing.
    """
    precision = precision or os.environ.get("MODULM_KERNEL_PRECISION", "") or "fast"
    if isinstance(weight, ChannelInt8):
        native = _pack_channels(weight)
    elif isinstance(weight, GroupedInt) and supports(weight):
        _check_groups(weight)
        native = _native_groups(weight, _numbers(weight))
    else:
        raise TypeError(f"{type(weight).__name__} cannot be packed: {supports(weight)}.")
    return with_precision(native, weight, precision)


def _pack_channels(weight: ChannelInt8) -> Any:
    from modulm_kernels_cpu import _native

    shape = (weight.out_features, weight.in_features)
    require(weight.codes, shape, ("int8",), "codes")
    require(weight.scales, shape[:1], ("float32",), "scales")
    codes, scales = plain(weight.codes), plain(weight.scales)
    groups = (8, weight.in_features, scales.ctypes.data, 0, FLOATS["float32"], _SHIFT, 128)
    return _native.Int8Weight(codes.ctypes.data, True, *shape, weight.in_features, *groups)


def pack_in_steps(weight: GroupedInt, precision: str) -> PackedMatrix | None:
    """Copy a weight that `supports` accepts into panels if its scales are of two levels; else return None."""
    _check_groups(weight)
    numbers = _numbers(weight)
    return with_precision(_native_groups(weight, numbers), weight, precision) if numbers.span else None


def pack_in_table(weight: Codebook4, values: list[int], size: float, precision: str) -> PackedMatrix | None:
    """Copy a weight of 4 bits into panels if its scales are of two levels; else return None.

    `values` are those of the codebook in whole steps of `size`, a power of two, at most 127. Where no more than 8
    are in use, 3 bits say which (GGUF's IQ1 and IQ2).
    """
    from modulm_kernels_cpu import _native

    steps = find_steps(weight.group_size, weight.scales)
    if steps is None:
        return None
    codes, used = plain(weight.codes), np.flatnonzero(_in_use(weight.codes))
    bits, table = 4, values
    if len(used) <= 1 << 3:
        place = np.zeros(16, np.uint8)
        place[used] = np.arange(len(used))
        codes = (place[:, None] << 4 | place).reshape(-1)[codes]
        bits, table = 3, [values[code] for code in used]
    zero = 128
    table = [*(step + zero for step in table), *[zero] * (16 - len(table))]
    shape = (weight.out_features, weight.in_features, weight.in_features // 2)
    numbers = (_TABLE + bits, weight.group_size, steps.multiples[0].ctypes.data, 0, FLOATS["float32"], _SHIFT, zero)
    coarse = (steps.span, False, steps.unit * size, steps.coarse[0].ctypes.data, 0)
    return with_precision(
        _native.Int8Weight(codes.ctypes.data, False, *shape, *numbers, coarse, table), weight, precision
    )


def _in_use(codes: np.ndarray) -> np.ndarray:
    """Return which of 16 codes there are, two to a byte."""
    counts = np.bincount(codes.reshape(-1), minlength=256).reshape(16, 16)
    return counts.sum(axis=0) + counts.sum(axis=1) > 0


def _check_groups(weight: GroupedInt) -> None:
    if weight.group_size < 1 or weight.in_features % weight.group_size:
        raise ValueError(f"Groups of {weight.group_size} inputs do not divide {weight.in_features}.")
    scale_shape = (weight.out_features, weight.in_features // weight.group_size)
    require(weight.codes, (weight.out_features, _row_bytes(weight)), ("uint8",), "codes")
    for name, part in (("scales", weight.scales), ("minimums", weight.minimums)):
        require(part, scale_shape, ("float32", "float16"), name)


def _row_bytes(weight: GroupedInt) -> int:
    return weight.in_features // 2 if weight.bits <= _MOST_PAIRED else weight.in_features


def _native_groups(weight: GroupedInt, numbers: "_Numbers") -> Any:
    from modulm_kernels_cpu import _native

    arrays = (numbers.scales, numbers.minimums, *numbers.coarse)
    scales, low, coarse, coarse_low = (0 if array is None else array.ctypes.data for array in arrays)
    codes, stored = plain(weight.codes), 8 if weight.bits == 7 else weight.bits
    shape = (weight.out_features, weight.in_features, _row_bytes(weight))
    groups = (stored, weight.group_size, scales, low, FLOATS[numbers.type], numbers.kind, numbers.zero)
    steps = (numbers.span, numbers.in_nibbles, numbers.unit, coarse, coarse_low)
    return _native.Int8Weight(codes.ctypes.data, False, *shape, *groups, steps)


class _Numbers(NamedTuple):
    """Scales and minimums in as few bytes as are exact: a `Zero`, and what `Int8Weight` asks beside it."""

    kind: int
    zero: int
    scales: np.ndarray
    minimums: np.ndarray | None = None
    type: str = "float16"
    span: int = 0
    in_nibbles: bool = False
    unit: float = 1.0
    coarse: tuple[np.ndarray | None, np.ndarray | None] = (None, None)


def _numbers(weight: GroupedInt) -> _Numbers:
    scales, minimums = plain(weight.scales), plain(weight.minimums)
    zero = zero_point(scales, minimums, 256)
    if zero is not None:
        return _smallest(weight.group_size, _PRODUCT, zero, scales)
    points = zero_points(scales, minimums)
    if points is not None:
        scales = _halves(scales)
        return _Numbers(_POINTS, 0, scales, points, scales.dtype.name)
    return _smallest(weight.group_size, _MINIMUMS, 0, *same_type(scales, minimums))


def _smallest(
    group_size: int, kind: int, zero: int, scales: np.ndarray, minimums: np.ndarray | None = None
) -> _Numbers:
    numbers = (scales,) if minimums is None else (scales, minimums)
    if fit_half(*numbers):
        return _Numbers(kind, zero, _halves(scales), None if minimums is None else _halves(minimums))
    steps = find_steps(group_size, *numbers)
    if steps is None:
        return _Numbers(kind, zero, scales, minimums, "float32")
    low = steps.multiples[1] if len(steps.multiples) > 1 else None
    coarse = (steps.coarse[0], steps.coarse[1] if len(steps.coarse) > 1 else None)
    return _Numbers(kind, zero, steps.multiples[0], low, "float32", steps.span, steps.in_nibbles, steps.unit, coarse)


def _halves(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.float16) if fit_half(numbers) else numbers
