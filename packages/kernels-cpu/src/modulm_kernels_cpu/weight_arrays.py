"""Arrays of weights, checked and laid out for native code, which gets their addresses. Knows no kinds, no torch."""

from collections.abc import Callable, Collection

import numpy as np

_ROWS_AT_ONCE = 4096
FLOATS = {"float32": 0, "float16": 1, "bfloat16": 2}
"""Types by which native code knows activations, scales and results: `Float` in float_types.hpp."""


def plain(array: np.ndarray) -> np.ndarray:
    """Return the array, or a copy of it, row by row without gaps and aligned."""
    return np.require(array, requirements=["C", "A"])


def require(array: np.ndarray, shape: tuple[int, ...], dtypes: Collection[str], what: str) -> None:
    """Refuse an array of a weight that is not what its kind says, before its address is handed to native code."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{what} is a {type(array).__module__}.{type(array).__name__}; it must be an array of numpy.")
    if array.dtype.name not in dtypes or not array.dtype.isnative:
        raise TypeError(f"{what} is {array.dtype}; it must be one of {', '.join(dtypes)}.")
    if array.shape != shape:
        raise ValueError(f"{what} has shape {list(array.shape)}; it must be {list(shape)}.")


def same_type(scales: np.ndarray, minimums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both in one type: their own, or float32."""
    if scales.dtype == minimums.dtype:
        return scales, minimums
    return scales.astype(np.float32), minimums.astype(np.float32)


def holds(what: Callable[[np.ndarray], bool], *arrays: np.ndarray) -> bool:
    """Whether something holds of all arrays [rows, any], which is asked of some rows at a time."""
    starts = range(0, len(arrays[0]), _ROWS_AT_ONCE)
    with np.errstate(all="ignore"):
        return all(what(array[row : row + _ROWS_AT_ONCE]) for row in starts for array in arrays)


def fit_half(*arrays: np.ndarray) -> bool:
    """Whether float16 holds all numbers exactly."""
    return holds(lambda part: part.dtype == np.float16 or np.array_equal(part.astype(np.float16), part), *arrays)


def zero_point(scales: np.ndarray, minimums: np.ndarray, limit: int) -> int | None:
    """Return the code below `limit` that stands for 0, where it is the same everywhere: minimum == -code * scale."""
    first = int(np.argmax(scales != 0))
    scale, minimum = float(scales.flat[first]), float(minimums.flat[first])
    code = -minimum / scale if scale else 0.0
    return int(code) if code in range(limit) and are_scaled(scales, minimums, int(code)) else None


def are_scaled(scales: np.ndarray, minimums: np.ndarray, zero: int) -> bool:
    """Whether each minimum is -zero * scale, exactly, as in signed formats: integers then hold it, and no memory."""
    at_once = max(1, (1 << 18) // scales.shape[1])
    parts = (slice(row, row + at_once) for row in range(0, len(scales), at_once))
    with np.errstate(all="ignore"):
        return all(
            np.array_equal(scales[part].astype(np.float32) * np.float32(-zero), minimums[part]) for part in parts
        )


def zero_points(scales: np.ndarray, minimums: np.ndarray) -> np.ndarray | None:
    """Return uint8 zero points where each minimum is -zero * scale, exactly (AWQ, GPTQ): a byte in place of a float."""
    at_once = max(1, (1 << 18) // scales.shape[1])
    out = np.empty(scales.shape, np.uint8)
    with np.errstate(all="ignore"):
        for row in range(0, len(scales), at_once):
            scale, minimum = (part[row : row + at_once].astype(np.float32) for part in (scales, minimums))
            zeros = np.where(scale == 0, 0, np.rint(-minimum / scale))
            part = np.where((zeros >= 0) & (zeros <= 255), zeros, 0).astype(np.uint8)
            if not np.array_equal(-(part * scale), minimum):
                return None
            out[row : row + at_once] = part
    return out
