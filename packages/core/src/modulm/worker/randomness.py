"""Random numbers without state: a hash of (seed, position), so that a token never depends on batch, step or retry.

The generator is splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), entered at any
position directly. Knows no tensors and no sequences.
"""

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(12)


def _mix(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> _SHIFTS[0])) * _FACTORS[0]
    state = (state ^ (state >> _SHIFTS[1])) * _FACTORS[1]
    return state ^ (state >> _SHIFTS[2])


def mixed(seeds: np.ndarray) -> np.ndarray:
    """Return what `uniform` takes, uint64, of seeds (uint64)."""
    # Mixing the seed first keeps neighbouring seeds from walking through the same sequence, shifted.
    return _mix(seeds)


def uniform(mixed_seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return float64 numbers in [0, 1), one for each pair of `mixed` seed and position (int64)."""
    bits = _mix(mixed_seeds + positions.astype(np.uint64) * _GAMMA)
    # 52 bits, so that u * total stays below total whatever total is.
    return (bits >> _SHIFTS[3]).astype(np.float64) * 2.0**-52


def derived_seed(seed: int, counter: int) -> int:
    """Return the seed of the `counter`-th sequence that came without one."""
    state = np.array([(seed + (counter + 1) * int(_GAMMA)) & _MASK], dtype=np.uint64)
    return int(_mix(_mix(state))[0])


def as_seed(seed: int) -> int:
    """Return the unsigned 64-bit number of a seed that may be negative."""
    return seed & _MASK
