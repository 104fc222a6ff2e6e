"""How often each token occurs in one sequence, kept up token by token: what penalties need.

Knows no tensors; `penalties.py` applies the counts.
"""

from collections.abc import Sequence

import numpy as np


class TokenCounts:
    """The distinct tokens of prompt and output, each with its number of occurrences in the output (0: prompt only)."""

    def __init__(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        self._ids = np.unique(np.asarray(prompt_ids, dtype=np.int64))
        self._counts = np.zeros(len(self._ids), dtype=np.float32)
        self._size = len(self._ids)
        self._place = {token: place for place, token in enumerate(self._ids.tolist())}
        for token in output_ids:
            self.add(token)

    def add(self, token_id: int) -> None:
        """Count one more output token."""
        place = self._place.get(token_id)
        if place is None:
            place = self._place[token_id] = self._size
            if place == len(self._ids):
                self._grow()
            self._ids[place] = token_id
            self._counts[place] = 0.0
            self._size += 1
        self._counts[place] += 1.0

    def copy(self) -> "TokenCounts":
        """Return counts that go on by themselves."""
        made = TokenCounts((), ())
        made._ids, made._counts = self._ids.copy(), self._counts.copy()
        made._size, made._place = self._size, self._place.copy()
        return made

    def _grow(self) -> None:
        room = max(64, len(self._ids))
        self._ids = np.concatenate([self._ids, np.zeros(room, dtype=np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(room, dtype=np.float32)])

    @property
    def token_ids(self) -> np.ndarray:
        """Return the distinct tokens, int64 [n]; read only."""
        return self._ids[: self._size]

    @property
    def output_counts(self) -> np.ndarray:
        """Return each one's occurrences in the output, float32 [n]; read only."""
        return self._counts[: self._size]
