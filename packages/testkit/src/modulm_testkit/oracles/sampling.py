"""What sampling kernels mean, one token after the other in float64: `interfaces/sampling.py` as it reads."""

from collections.abc import Iterator

import numpy as np

_LARGEST = float(np.finfo(np.float32).max)
_SLACK = 1e-5
"""Share of the weight that float32 leaves open."""


def descending(row: np.ndarray) -> list[int]:
    """Return ids by their logits, the largest first, of equal ones the lower id first."""
    return sorted(range(len(row)), key=lambda token: (-float(row[token]), token))


def penalised(x: float, count: float, repetition: float, frequency: float, presence: float) -> float:
    """Return a listed token's logit."""
    x = x / repetition if x > 0 else x * repetition
    return min(x - frequency * count - presence * (count > 0), _LARGEST)


def log_probabilities(row: np.ndarray) -> np.ndarray:
    """Return float64 log-probabilities of all tokens."""
    shifted = row.astype(np.float64) - float(row.max())
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum())
    return result


class Shares:
    """Each token's share of the cumulated weight that decides a draw.

    Attributes:
        is_clear: Whether no rule decides by less than float32 can tell; else a draw proves nothing.
    """

    def __init__(self, row: np.ndarray, temperature: float, min_p: float, top_k: int, top_p: float) -> None:
        scaled = (row.astype(np.float64) - float(row.max())) / temperature
        weights = np.exp(scaled)
        self.is_clear = True
        if min_p > 0:
            self.is_clear &= bool(np.abs(scaled - np.log(min_p)).min() > _SLACK)
            weights[scaled < np.log(min_p)] = 0
        order = list(range(len(row)))
        if 0 < top_k < len(row) or top_p < 1:
            order = descending(row)
            if 0 < top_k < len(row):
                order = order[:top_k]
            total = weights[order].sum()
            before = np.cumsum(weights[order]) - weights[order]
            if top_p < 1:
                self.is_clear &= bool(np.abs(before[weights[order] > 0] - top_p * total).min() > _SLACK * total)
                order = [token for token, each in zip(order, before, strict=True) if each < top_p * total]
        self._weights = dict(zip(order, weights[order], strict=True))
        self._ends = dict(zip(order, np.cumsum(weights[order]), strict=True))
        self._total = float(weights[order].sum())

    def allows(self, token: int, number: float) -> bool:
        """Whether this token may be drawn for a number in [0, 1)."""
        weight = self._weights.get(token, 0.0)
        slack, sought = _SLACK * self._total, number * self._total
        return weight > 0 and self._ends[token] - weight - slack <= sought <= self._ends[token] + slack

    def __iter__(self) -> Iterator[int]:
        return iter(self._weights)
