"""Weights of 5 to 8 bits in panels, multiplied by integer activations: `GroupedInt` and `ChannelInt8`.

"fast" quantises activations in groups of 32 inputs (16 where a weight's group is no multiple of 32), to 8 bits but for
single large ones, and adds up exact integers; "exact" multiplies float32 activations by dequantised weights, slowly, to
tell one error from another. The layout is in `native/linear_int8.hpp`. Knows nothing of when these kernels are asked:
see `provider.py`.
"""

import os
from typing import Any

from modulm.interfaces.quantization import ChannelInt8, GroupedInt, Weight
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_kernels_cpu.packed_dense import PackedMatrix, with_precision
from modulm_kernels_cpu.weight_arrays import FLOATS, are_scaled, plain, require, same_type

_SHIFT, _PRODUCT, _MINIMUMS = 0, 1, 2
"""`Zero` in linear_int8.hpp: how codes become numbers."""


def supports(weight: Weight) -> Support:
    """Say whether `pack` serves this weight."""
    if isinstance(weight, ChannelInt8):
        return Accepted("8-bit weights")
    if not isinstance(weight, GroupedInt):
        return Rejected(f"{type(weight).__name__} is no kind of integers with scales")
    if not 5 <= weight.bits <= 8:
        return Rejected(f"it takes 5 to 8 bits, not {weight.bits}")
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
        native = _pack_groups(weight)
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


def _pack_groups(weight: GroupedInt) -> Any:
    from modulm_kernels_cpu import _native

    shape = (weight.out_features, weight.in_features)
    if weight.group_size < 1 or weight.in_features % weight.group_size:
        raise ValueError(f"Groups of {weight.group_size} inputs do not divide {weight.in_features}.")
    scale_shape = (weight.out_features, weight.in_features // weight.group_size)
    require(weight.codes, shape, ("uint8",), "codes")
    for name, part in (("scales", weight.scales), ("minimums", weight.minimums)):
        require(part, scale_shape, ("float32", "float16"), name)
    zero = 1 << (weight.bits - 1)
    codes, scales, minimums = plain(weight.codes), plain(weight.scales), plain(weight.minimums)
    centred = are_scaled(scales, minimums, zero)
    if not centred:
        scales, minimums = same_type(scales, minimums)
    stored = weight.bits if weight.bits < 7 else 8
    groups = (stored, weight.group_size, scales.ctypes.data, 0 if centred else minimums.ctypes.data)
    kind = (FLOATS[scales.dtype.name], _PRODUCT if centred else _MINIMUMS, zero)
    return _native.Int8Weight(codes.ctypes.data, False, *shape, weight.in_features, *groups, *kind)
