"""How far a result may lie from float64: one table for all suites, by the coarsest number on the way.

Numbers are of order 1. A plugin's own tests may ask for more, never for less.
"""

import ml_dtypes
import numpy as np

ABSOLUTE = {"float32": 5e-5, "float16": 2e-3, "bfloat16": 2e-2, "int8_per_token_head": 6e-2}
ABSOLUTE |= {"fp8_e4m3": 1e-2, "fp8_e5m2": 1e-2, "nvfp4": 1e-2}  # expected values are rounded alike: few ties differ
_FLOAT8 = {"fp8_e4m3": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2}
ROUNDED = 2e-3
"""Where numbers may be rounded on the way although they are stored in float32."""


def tolerance(*dtypes: str, exact: bool = True) -> float:
    """Return the absolute error allowed when numbers pass through these dtypes."""
    return max(*(ABSOLUTE[dtype] for dtype in dtypes), 0.0 if exact else ROUNDED)


def rounded(numbers: np.ndarray, dtype: str, scales: float | np.ndarray = 1.0) -> np.ndarray:
    """Return float64 numbers as they are after a stay in `dtype`, in a KV cache by `scales` that broadcast.

    A cache that has a scale for each token is left to the tolerance.
    """
    if dtype in _FLOAT8:
        largest = float(ml_dtypes.finfo(_FLOAT8[dtype]).max)
        codes = np.clip(numbers.astype(np.float32) / np.float32(scales), -largest, largest).astype(_FLOAT8[dtype])
        return codes.astype(np.float64) * np.float32(scales)
    if dtype == "nvfp4":  # a scale for each 16 numbers, so that the largest is 6, the largest number of 4 bits
        groups = numbers.reshape(*numbers.shape[:-1], -1, 16)
        factors = rounded(np.abs(groups).max(-1) / 6, "fp8_e4m3", scales)[..., None]
        codes = np.divide(groups, factors, out=np.zeros_like(groups), where=factors > 0)
        return (codes.astype(ml_dtypes.float4_e2m1fn).astype(np.float64) * factors).reshape(numbers.shape)
    if dtype not in ("float32", "float16", "bfloat16"):
        return numbers
    return numbers.astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float64)
