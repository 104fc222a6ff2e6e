"""Weights of 4 bits in a layout of our own: `GroupedInt`, `Codebook4` and `BlockFloat4`.

Activations become bytes on the way; with precision "exact" they stay float32. The layout and the arithmetic are
in `native/linear_q4.hpp`, checks of each call in `packed_dense.PackedMatrix`. Knows no format and no environment.
"""

import math
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from modulm.interfaces.quantization import BlockFloat4, Codebook4, GroupedInt, Weight
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_kernels_cpu.packed_dense import PackedMatrix
from modulm_kernels_cpu.packed_int8 import pack_in_steps, pack_in_table
from modulm_kernels_cpu.weight_arrays import fit_half, holds, plain, require, same_type, zero_point, zero_points

FourBit: TypeAlias = GroupedInt | Codebook4 | BlockFloat4

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_LARGEST_STEP = 127


def supports(weight: Weight) -> Support:
    """Say whether `pack` serves this weight."""
    if not isinstance(weight, FourBit):
        return Rejected(f"{type(weight).__name__} is not a kind of 4 bits")
    if isinstance(weight, GroupedInt) and weight.bits != 4:
        return Rejected(f"{weight.bits} bits are not 4")
    if weight.in_features % 2:
        return Rejected(f"{weight.in_features} inputs are no whole number of bytes")
    if weight.group_size % 16 and weight.group_size != weight.in_features:
        return Rejected(f"group size {weight.group_size} is neither a multiple of 16 nor a whole row")
    return Accepted("4-bit weights")


def pack(weight: Weight, precision: str = "fast", isa: str = "") -> PackedMatrix:
    """Copy a weight into blocks of rows; its arrays are no longer needed then.

    Args:
        weight: One that `supports` accepts.
        precision: "fast", or "exact": float32 activations times dequantised weights.
        isa: An instruction set other than the chosen one, for tests.
    """
    if not isinstance(weight, FourBit):
        raise TypeError(f"{type(weight).__name__} is not a kind of 4 bits.")
    if precision not in ("fast", "exact"):
        raise ValueError(f"Precision {precision!r} is unknown. There are 'fast' and 'exact'.")
    exact = precision == "exact"
    require(weight.codes, (weight.out_features, weight.in_features // 2), ("uint8",), "codes")
    if isinstance(weight, GroupedInt):
        return (None if isa else _in_steps(weight, precision)) or PackedMatrix(_grouped(weight, exact, isa), weight)
    if isinstance(weight, Codebook4):
        values = weight.codebook.tolist()
        made = None if isa else _in_table(weight, values, precision)
        return made or PackedMatrix(_codebook(weight, values, weight.scales, exact, isa), weight)
    return PackedMatrix(_codebook(weight, list(_E2M1), _block_scales(weight.scales), exact, isa), weight)


def steps_of(values: list[float]) -> tuple[list[int], float, float]:
    """Return whole steps of -127 to 127, the size of a step, and the largest distance of steps * size from `values`.

    The size is chosen so that the largest value is a whole number of steps and that distance is smallest. It is at most
    1/254 of the largest value: 1/282 for NF4, 0 for IQ4_NL and FP4 e2m1. Values must be finite.
    """
    largest = max(abs(value) for value in values)
    if not largest:
        return [0] * len(values), 1.0, 0.0
    best: tuple[list[int], float, float] | None = None
    for count in range(1, _LARGEST_STEP + 1):
        size = largest / count
        steps = [round(value / size) for value in values]
        distance = max(abs(step * size - value) for step, value in zip(steps, values, strict=True))
        if best is None or distance < best[2]:
            best = steps, size, distance
    assert best is not None
    return best


def _in_steps(weight: GroupedInt, precision: str) -> PackedMatrix | None:
    """Return the weight in panels where its scales are of two levels (Q4_K), which blocks of this layout cannot be."""
    scales, minimums = _checked(weight, weight.scales, "scales"), _checked(weight, weight.minimums, "minimums")
    if scales.dtype != np.float32 or fit_half(scales):
        return None
    return pack_in_steps(replace(weight, scales=scales, minimums=minimums), precision)


def _in_table(weight: Codebook4, values: list[float], precision: str) -> PackedMatrix | None:
    """The same, where values are whole steps, too (IQ4_XS)."""
    scales = _checked(weight, weight.scales, "scales")
    if scales.dtype != np.float32 or fit_half(scales) or not all(map(math.isfinite, values)):
        return None
    steps, size, distance = steps_of(values)
    if distance or math.frexp(size)[0] != 0.5:
        return None
    return pack_in_table(replace(weight, scales=scales), steps, size, precision)


def _grouped(weight: GroupedInt, exact: bool, isa: str) -> Any:
    from modulm_kernels_cpu import _native

    scales, minimums = _checked(weight, weight.scales, "scales"), _checked(weight, weight.minimums, "minimums")
    scales, minimums = same_type(scales, minimums)
    offset = zero_point(scales, minimums, 16)
    zeros = None if offset is not None else zero_points(scales, minimums)
    stored = minimums if offset is None and zeros is None else None
    kind = _scale_type(*(numbers for numbers in (scales, stored) if numbers is not None), alone=offset is not None)
    codes, size = plain(weight.codes), weight.group_size
    return _native.Q4Weight.grouped(
        codes, scales, stored, zeros, size, offset or 0, scale_type=kind, exact=exact, isa=isa
    )


def _codebook(weight: Codebook4 | BlockFloat4, values: list[float], scales: np.ndarray, exact: bool, isa: str) -> Any:
    from modulm_kernels_cpu import _native

    if len(values) != 16:
        raise ValueError(f"The codebook has {len(values)} values; 4 bits have 16.")
    scales = _checked(weight, scales, "scales")
    is_finite = all(math.isfinite(value) for value in values)
    steps, size, _ = steps_of(values if is_finite else [0.0] * 16)
    return _native.Q4Weight.codebook(
        plain(weight.codes),
        scales,
        values,
        steps,
        size,
        weight.group_size,
        scale_type=_scale_type(scales, alone=True),
        exact=exact or not is_finite,
        isa=isa,
    )


def _checked(weight: FourBit, numbers: np.ndarray, what: str) -> np.ndarray:
    """Return an array of one number per group, contiguous, in float16 or float32."""
    shape = (weight.out_features, weight.in_features // weight.group_size)
    require(numbers, shape, ("float16", "float32", "bfloat16"), what)
    return plain(numbers.astype(np.float32) if numbers.dtype.name == "bfloat16" else numbers)


def _block_scales(scales: np.ndarray) -> np.ndarray:
    """Scales of `BlockFloat4` as float32: bytes are exponents (E8M0 of the OCP specification), the rest are floats."""
    if scales.dtype == np.uint8:
        with np.errstate(over="ignore"):
            return np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    return scales.astype(np.float32)


_F32, _F16, _F16_BYTE, _EXPONENT = range(4)
"""`ScaleType` in linear_q4.hpp: how scales and minimums lie in memory."""


def _scale_type(*numbers: np.ndarray, alone: bool) -> int:
    """Return the smallest type that holds all of them exactly; `alone`, with no minimums, a byte may do."""
    if alone and holds(_is_f16_byte, *numbers):
        return _F16_BYTE
    if alone and holds(_is_exponent, *numbers):
        return _EXPONENT
    return _F16 if fit_half(*numbers) else _F32


def _is_f16_byte(numbers: np.ndarray) -> bool:
    halves = numbers.astype(np.float16)
    return not (halves.view(np.uint16) & 0x807F).any() and np.array_equal(halves, numbers)


def _is_exponent(numbers: np.ndarray) -> bool:
    bits = numbers.astype(np.float32).view(np.uint32)
    return not (bits & 0x807FFFFF).any() and not (bits == 0).any() and not (bits == 0x7F800000).any()
