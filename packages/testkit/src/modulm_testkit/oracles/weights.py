"""What a `Weight` is worth, and whether it is formed as its kind asks: `interfaces/quantization.py` in float64."""

import numpy as np

from modulm.interfaces.quantization import (
    BlockFloat4,
    ChannelInt8,
    Codebook4,
    Dense,
    Encoded,
    Float8,
    GroupedInt,
    Reordered,
    VectorCodebook,
    Weight,
)

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""Values of e2m1 by code (OCP Microscaling Formats 1.0)."""


def pack4(codes: np.ndarray) -> np.ndarray:
    """Return codes of at most 4 bits, two to a byte, the even column in the low nibble."""
    packed: np.ndarray = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return packed


def unpack4(packed: np.ndarray) -> np.ndarray:
    """Undo `pack4`."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


def dequantised(weight: Weight) -> np.ndarray:
    """Return the matrix, float64 [out_features, in_features]."""
    if isinstance(weight, Dense):
        return weight.data.astype(np.float64)
    if isinstance(weight, GroupedInt):
        codes = unpack4(weight.codes) if weight.bits <= 4 else weight.codes
        scales, minimums = (_spread(part, weight.group_size) for part in (weight.scales, weight.minimums))
        return scales * codes + minimums
    if isinstance(weight, ChannelInt8):
        return weight.scales.astype(np.float64)[:, None] * weight.codes
    if isinstance(weight, Float8):
        high, wide = weight.block
        scales = weight.scales.astype(np.float64).repeat(high, axis=0).repeat(wide, axis=1)
        return scales[: weight.out_features, : weight.in_features] * weight.data.astype(np.float64)
    if isinstance(weight, Codebook4):
        values = weight.codebook.astype(np.float64)[unpack4(weight.codes)]
        return _spread(weight.scales, weight.group_size) * values
    if isinstance(weight, VectorCodebook):
        values = weight.codebook.astype(np.float64)[weight.codes].reshape(len(weight.codes), -1)
        signs = np.unpackbits(weight.signs, axis=1, bitorder="little") if weight.signs.size else 0
        return _spread(weight.scales, weight.group_size) * np.where(signs, -values, values)
    if isinstance(weight, BlockFloat4):
        scales = weight.scales
        exponents = scales.dtype == np.uint8
        factors = 2.0 ** (scales.astype(np.float64) - 127) if exponents else scales.astype(np.float64)
        return _spread(factors, weight.group_size) * FP4[unpack4(weight.codes)]
    if isinstance(weight, Encoded):
        return weight.decode(weight.data).astype(np.float64)
    if isinstance(weight, Reordered):
        out = np.empty((weight.out_features, weight.in_features))
        out[:, weight.order] = dequantised(weight.weight)
        return out
    raise TypeError(f"{type(weight).__name__} is no canonical kind of weight.")


def faults(weight: Weight) -> list[str]:
    """Return what is wrong with a weight's arrays, by what its kind's docstring says of shapes and types."""
    rows, columns = weight.out_features, weight.in_features
    found: list[str] = []

    def check(name: str, shape: tuple[int, ...], *types: str) -> None:
        array = getattr(weight, name)
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype.name not in types:
            is_array = isinstance(array, np.ndarray)
            got = f"{array.dtype.name} {list(array.shape)}" if is_array else type(array).__name__
            found.append(f"{name} is {got}, not {' or '.join(types)} {list(shape)}")

    group = getattr(weight, "group_size", columns)
    if not group or columns % group:
        return [f"group_size {group} does not divide in_features {columns}"]
    groups = (rows, columns // group)
    if isinstance(weight, Dense):
        check("data", (rows, columns), "float32", "float16", "bfloat16")
    elif isinstance(weight, GroupedInt):
        if not 2 <= weight.bits <= 8:
            found.append(f"bits is {weight.bits}, not 2 to 8")
        check("codes", (rows, columns // 2 if weight.bits <= 4 else columns), "uint8")
        check("scales", groups, "float16", "float32")
        check("minimums", groups, "float16", "float32")
    elif isinstance(weight, ChannelInt8):
        check("codes", (rows, columns), "int8")
        check("scales", (rows,), "float32")
    elif isinstance(weight, Float8):
        high, wide = weight.block
        check("data", (rows, columns), "float8_e4m3fn", "float8_e5m2")
        check("scales", (-(-rows // high), -(-columns // wide)), "float32", "float16", "bfloat16")
    elif isinstance(weight, Codebook4):
        check("codes", (rows, columns // 2), "uint8")
        check("scales", groups, "float16", "float32")
        check("codebook", (16,), "float32")
    elif isinstance(weight, VectorCodebook):
        check("codes", (rows, columns // weight.codebook.shape[1]), "uint16")
        check("signs", (rows, columns // 8 if weight.signs.size else 0), "uint8")
        check("scales", groups, "float16", "float32")
    elif isinstance(weight, BlockFloat4):
        check("codes", (rows, columns // 2), "uint8")
        check("scales", groups, "uint8", "float8_e8m0fnu", "float8_e4m3fn", "float16", "float32")
    elif isinstance(weight, Encoded):
        if weight.data.dtype != np.uint8 or weight.data.ndim != 2 or len(weight.data) != rows:
            found.append(f"data is {weight.data.dtype.name} {list(weight.data.shape)}, not uint8 [{rows}, bytes]")
    elif isinstance(weight, Reordered):
        check("order", (columns,), "int32")
        if not found and sorted(weight.order.tolist()) != list(range(columns)):
            found.append(f"order is no permutation of {columns} inputs")
        inner = weight.weight
        if isinstance(inner, Reordered) or (inner.out_features, inner.in_features) != (rows, columns):
            found.append(f"weight is {type(inner).__name__} {[inner.out_features, inner.in_features]}")
        else:
            found += faults(inner)
    else:
        found.append(f"{type(weight).__name__} is no canonical kind")
    return found


def _spread(numbers: np.ndarray, group_size: int) -> np.ndarray:
    return numbers.astype(np.float64).repeat(group_size, axis=1)
