"""Sampling on the host in plain numpy, row by row: what `SamplingKernels` means, and what runs where no plugin has it.

Imports no torch.
"""

import numpy as np

from modulm.interfaces.sampling import NO_TOKEN, DrawParameters, Penalties, Scores

_FEW = 512
"""So many candidates nearly always hold what top-p keeps; finding them is cheaper than sorting a vocabulary."""
_LARGEST = np.finfo(np.float32).max


class NumpySampling:
    """See `SamplingKernels`."""

    def argmax(self, logits: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """See `SamplingKernels`."""
        picked = logits if len(rows) == len(logits) else logits[rows]
        ids = picked.argmax(axis=-1)  # of NaN too
        ids[~np.isfinite(picked[np.arange(len(ids)), ids])] = NO_TOKEN
        return ids

    def mask(self, logits: np.ndarray, rows: np.ndarray, bitmask: np.ndarray) -> None:
        """See `SamplingKernels`."""
        octets = bitmask.astype("<u4").view(np.uint8)
        bits = np.unpackbits(octets, axis=1, count=logits.shape[-1], bitorder="little")
        logits[rows] = np.where(bits, logits[rows], -np.inf)

    def bias(self, logits: np.ndarray, rows: np.ndarray, ids: np.ndarray, values: np.ndarray) -> None:
        """See `SamplingKernels`."""
        forbids = values == -np.inf
        with np.errstate(over="ignore"):
            shifted = logits[rows, ids] + np.where(forbids, np.float32(0), values)
        logits[rows, ids] = np.where(forbids, values, shifted)

    def penalise(self, logits: np.ndarray, rows: np.ndarray, penalties: Penalties) -> None:
        """See `SamplingKernels`."""
        lengths, ids, counts = np.diff(penalties.starts), penalties.ids, penalties.counts
        at = np.repeat(rows, lengths)
        repetition, frequency, presence = np.repeat(penalties.factors, lengths, axis=1)
        with np.errstate(over="ignore"):
            values = logits[at, ids]
            values = np.where(values > 0, values / repetition, values * repetition)
            values -= frequency * counts
            values -= presence * (counts > 0)
        logits[at, ids] = np.minimum(values, _LARGEST)

    def draw(self, logits: np.ndarray, rows: np.ndarray, parameters: DrawParameters, numbers: np.ndarray) -> np.ndarray:
        """See `SamplingKernels`."""
        each = zip(
            parameters.temperature,
            parameters.log_min_p,
            parameters.top_k.tolist(),
            parameters.top_p.tolist(),
            numbers.tolist(),
            strict=True,
        )
        drawn = [_drawn(logits[row], *asked) for row, asked in zip(rows.tolist(), each, strict=True)]
        return np.array(drawn, dtype=np.int64)

    def scores(self, logits: np.ndarray, rows: np.ndarray, token_ids: np.ndarray, num_top: np.ndarray) -> Scores:
        """See `SamplingKernels`."""
        picked = logits[rows]
        with np.errstate(invalid="ignore", over="ignore"):  # a row of NaN has scores of NaN
            shifted = picked - picked.max(axis=-1, keepdims=True)
            logs = np.log(np.exp(shifted).sum(axis=-1, dtype=np.float64))
        at = np.arange(len(rows))
        chosen = picked[at, token_ids]
        ranks = (picked > chosen[:, None]).sum(axis=-1) + 1
        top_ids = np.zeros((len(rows), int(num_top.max(initial=0))), dtype=np.int64)
        for row, count in enumerate(num_top.tolist()):
            found = _likeliest(picked[row], count)
            top_ids[row, : len(found)] = found
        top_logprobs = shifted[at[:, None], top_ids] - logs[:, None]
        logprobs = shifted[at, token_ids] - logs
        return Scores(logprobs.astype(np.float32), ranks, top_ids, top_logprobs.astype(np.float32))


def _drawn(
    logits: np.ndarray, temperature: np.float32, log_min_p: np.float32, top_k: int, top_p: float, number: float
) -> int:
    best = logits.max()
    if not np.isfinite(best):
        return NO_TOKEN
    with np.errstate(over="ignore"):
        scaled = (logits - best) / temperature
    weights = np.where(scaled < log_min_p, np.float32(0), np.exp(scaled))
    if top_k <= 0 or top_k >= len(logits):
        whole = np.cumsum(weights, dtype=np.float64)
        if top_p >= 1:
            return int(np.searchsorted(whole, number * whole[-1], side="right"))
        ids = _likeliest(logits, _FEW)
        if np.sum(weights[ids], dtype=np.float64) < top_p * whole[-1]:
            ids = _likeliest(logits, len(logits))
        total = whole[-1]
    else:
        ids = _likeliest(logits, top_k)
        total = np.sum(weights[ids], dtype=np.float64)
    cumulated = np.cumsum(weights[ids], dtype=np.float64)
    last = min(int(np.searchsorted(cumulated, top_p * total, side="left")), len(ids) - 1)
    place = np.searchsorted(cumulated, number * cumulated[last], side="right")
    return int(ids[place])


def _likeliest(logits: np.ndarray, count: int) -> np.ndarray:
    """Return the ids of the `count` largest logits, in descending order, of equal ones the lower id first."""
    ids = np.arange(len(logits))
    if 0 < count < len(logits) // 4:
        least = np.partition(logits, len(logits) - count)[len(logits) - count]
        ids = np.flatnonzero(logits >= least)
    return ids[np.argsort(-logits[ids], kind="stable")[:count]]
