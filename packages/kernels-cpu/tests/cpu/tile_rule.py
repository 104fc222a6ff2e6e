"""How products of many tokens go on AMX, as bounds against float64: the rules of `native/linear_widened_tiles.hpp`.

Activations are rounded to bfloat16. Weights become bfloat16 too, cut off after they grew by what that takes on average,
so that each errs by less than 0.72 of a step of its power of two (2^-7), and all of them together to both sides alike.
With at most `FEW` tokens codes of 4 bits in whole steps stay exact (`linear_coded_tiles.hpp`), and bytes are multiplied
as integers, as they are with fewer tokens.
"""

import ml_dtypes
import numpy as np

FEWEST = 12
FEW = 16
STEP = 2.0**-7


def is_tiled(isa, num_tokens, bits=4):
    """Say whether an instruction set, "" for the one of this machine, takes tiles of bfloat16 for so many tokens."""
    from modulm_kernels_cpu import _native

    return (isa or _native.isa()) == "amx" and num_tokens >= FEWEST and (bits <= 6 or num_tokens > FEW)


def assert_tiled(got, x, weight, *, terms, are_exact=False):
    """Hold a product against float64.

    Args:
        got: [num_tokens, out_features].
        x: float32 [num_tokens, in_features].
        weight: The matrix in float64.
        terms: Magnitudes of what float32 adds up to each number of the matrix, in its shape.
        are_exact: Weights fit bfloat16.
    """
    rounded = x.astype(ml_dtypes.bfloat16).astype(np.float64)
    expected = rounded @ weight.T
    sums = np.abs(rounded) @ terms.T
    assert np.isfinite(got).all()
    allowed = 2e-6 * sums + 1e-30
    if not are_exact:
        allowed += 0.72 * STEP * (np.abs(rounded) @ np.abs(weight).T)
    assert (np.abs(got - expected) <= allowed).all(), (np.abs(got - expected) / allowed).max()
    if are_exact or weight.size < 1000:
        return
    # Errors of single weights, 0.31 of a step of a number that is 1.44 times its power of two, add up as chance has it:
    # in cases of these tests to 0.5 to 1.6 times this, with a median of 1.0.
    likely = np.linalg.norm(np.sqrt(rounded**2 @ (weight**2).T)) * 0.31 * STEP / 1.44
    assert np.linalg.norm(got - expected) <= 2.0 * likely + 2e-6 * np.linalg.norm(sums)
