"""Random numbers by hash: range, evenness, independence of shape; token counts against collections.Counter."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from modulm.worker.randomness import as_seed, derived_seed, mixed, uniform
from modulm.worker.token_counts import TokenCounts


def test_first_number_is_splitmix64s():
    # The published generator, in Python's integers.
    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return z ^ (z >> 31)

    for seed, position in [(0, 0), (1, 5), (2**64 - 1, 4095)]:
        expected = (mix((mix(seed) + position * 0x9E3779B97F4A7C15) % 2**64) >> 12) * 2.0**-52
        assert uniform(mixed(np.array([seed], dtype=np.uint64)), np.array([position]))[0] == expected


def test_numbers_are_even_along_positions_and_along_seeds():
    many = 20_000
    along_positions = uniform(mixed(np.full(many, 7, dtype=np.uint64)), np.arange(many))
    along_seeds = uniform(mixed(np.arange(many, dtype=np.uint64)), np.full(many, 3))
    for numbers in (along_positions, along_seeds):
        counts, _ = np.histogram(numbers, bins=50, range=(0, 1))
        chi_square = ((counts - many / 50) ** 2 / (many / 50)).sum()
        assert chi_square < 85  # 49 degrees of freedom: exceeded once in a thousand
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(along_positions, along_seeds)[0, 1]) < 0.03


def test_a_number_does_not_depend_on_its_neighbours():
    seeds, positions = mixed(np.arange(9, dtype=np.uint64)), np.arange(9) * 3
    together = uniform(seeds, positions)
    assert all(uniform(seeds[i : i + 1], positions[i : i + 1])[0] == together[i] for i in range(9))


def test_derived_seeds_differ():
    assert len({derived_seed(seed, counter) for seed in range(-5, 50) for counter in range(50)}) == 55 * 50
    assert as_seed(-1) == 2**64 - 1


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 200), max_size=300), st.integers(0, 300))
def test_counts_equal_counters(prompt, output, split):
    counts = TokenCounts(prompt, output[:split])
    for token in output[split:]:
        counts.add(token)
    got = dict(zip(counts.token_ids.tolist(), counts.output_counts.tolist(), strict=True))
    assert got == {token: Counter(output)[token] for token in {*prompt, *output}}
