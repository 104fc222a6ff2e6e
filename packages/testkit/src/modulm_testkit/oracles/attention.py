"""Attention over one sequence in float64, as the definition reads; knows neither blocks nor batches."""

import numpy as np

from modulm.interfaces.attention import AttentionSpec


def attend(
    spec: AttentionSpec,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    sinks: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
) -> np.ndarray:
    """Return attention of the sequence's last tokens.

    softmax(cap(scale q.k) + slope * distance) v over the positions that are seen, the sink being one more term of the
    denominator. Sources: arXiv:1706.03762 (attention), 2305.13245 (groups of heads), 2408.00118 (cap), 2108.12409
    (ALiBi), 2309.17453 (sinks).

    Args:
        spec: The layer's.
        query: float64 [n, num_heads, head_size], of the last n positions.
        key, value: float64 [length, num_kv_heads, head_size].
        sinks, slopes: float64 [num_heads].
    """
    length, count = len(key), len(query)
    group = spec.num_heads // spec.num_kv_heads
    key, value = np.repeat(key, group, axis=1), np.repeat(value, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", query, key) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * np.tanh(scores / spec.soft_cap)
    distance = np.arange(length) - np.arange(length - count, length)[:, None]
    if slopes is not None:
        scores = scores + slopes[:, None, None] * distance
    hidden = distance > 0
    if spec.sliding_window is not None:
        hidden |= distance <= -spec.sliding_window
    scores = np.where(hidden, -np.inf, scores)
    sink = np.full((spec.num_heads, 1, 1), -np.inf) if sinks is None else sinks[:, None, None]
    largest = np.maximum(scores.max(-1, keepdims=True), sink)
    weights = np.exp(scores - largest)
    weights /= weights.sum(-1, keepdims=True) + np.exp(sink - largest)
    result: np.ndarray = np.einsum("hqk,khd->qhd", weights, value)
    return result
