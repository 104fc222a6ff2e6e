"""How far a result may lie from float64: one table for all suites, by the coarsest number on the way.

Numbers are of order 1. A plugin's own tests may ask for more, never for less.
"""

import ml_dtypes
import numpy as np

ABSOLUTE = {"float32": 5e-5, "float16": 2e-3, "bfloat16": 2e-2, "int8_per_token_head": 6e-2}
ROUNDED = 2e-3
"""Where numbers may be rounded on the way although they are stored in float32."""


def tolerance(*dtypes: str, exact: bool = True) -> float:
    """Return the absolute error allowed when numbers pass through these dtypes."""
    return max(*(ABSOLUTE[dtype] for dtype in dtypes), 0.0 if exact else ROUNDED)


def rounded(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Return float64 numbers as they are after a stay in `dtype`; a cache with scales is left to the tolerance."""
    if dtype not in ("float32", "float16", "bfloat16"):
        return numbers
    return numbers.astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float64)
