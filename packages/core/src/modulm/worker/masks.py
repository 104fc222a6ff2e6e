"""Tokens that a request forbids, and its biases, as the arrays that sampling kernels take.

Ids beyond the vocabulary are passed over: the front end refuses them, and a step must not fail for one.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from modulm.worker.row import DraftedRow, Row

Shifts = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(rows, ids, values): what is added to which logits; -inf forbids."""
_LARGEST_BIAS = 1e38
"""Beyond it the sum might not fit in float32; it decides between any two logits as it is."""


def allowed_bits(allowed: Sequence[Iterable[int]], vocab_size: int) -> np.ndarray:
    """Return a bitmask uint32 [n, ceil(vocab_size / 32)] with the given ids' bits set, row by row."""
    bits = np.zeros((len(allowed), -(-vocab_size // 32) * 32), dtype=np.uint8)
    for row, ids in zip(bits, allowed, strict=True):
        row[[i for i in ids if 0 <= i < vocab_size]] = 1
    return np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32, copy=False)


def biases(by_row: Mapping[int, Mapping[int, float]], vocab_size: int) -> Shifts | None:
    """Return the shifts of `logit_bias`; None when there are none."""
    triples = [(at, i, value) for at, each in by_row.items() for i, value in each.items() if 0 <= i < vocab_size]
    return _shifts(triples)


def forbidden(by_row: Mapping[int, Iterable[int]], vocab_size: int) -> Shifts | None:
    """Return shifts that forbid each row's ids; None when there are none."""
    pairs = dict.fromkeys((at, i) for at, ids in by_row.items() for i in ids if 0 <= i < vocab_size)
    return _shifts([(at, i, -np.inf) for at, i in pairs])


def _shifts(triples: list[tuple[int, int, float]]) -> Shifts | None:
    if not triples:
        return None
    rows, ids, values = zip(*triples, strict=True)
    limited = np.array(
        [value if value == -np.inf else np.clip(value, -_LARGEST_BIAS, _LARGEST_BIAS) for value in values]
    )
    return np.array(rows, dtype=np.int64), np.array(ids, dtype=np.int64), limited.astype(np.float32)


def completing_ids(row: Row | DraftedRow) -> list[int]:
    """Return every token that would complete a bad word; only the output counts as its beginning."""
    output_ids = row.output_ids
    return [last for first, last in row.bad_words if not first or output_ids[-len(first) :] == first]
