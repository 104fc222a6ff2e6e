"""Log-probabilities of chosen and likeliest tokens, from the model's own logits (vLLM's `raw_logprobs`).

Knows no requests: logits in, `TokenLogprobs` out.
"""

from collections.abc import Sequence

import numpy as np
import torch

from modulm.types import TokenLogprobs

_FEW = 32
"""Up to this many alternatives are found together, whatever each row asks, so that no row depends on its neighbours."""


def token_logprobs(
    logprobs: torch.Tensor, chosen: Sequence[int] | np.ndarray, num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Return one entry per row.

    Args:
        logprobs: float32 [n, vocab_size], log-softmax of the raw logits.
        chosen: Token id per row.
        num_top: Alternatives per row; -1 for the whole vocabulary.
    """
    vocab_size = logprobs.shape[-1]
    ids = torch.as_tensor(np.asarray(chosen, dtype=np.int64)).to(logprobs.device)[:, None]
    values = logprobs.gather(1, ids)
    ranks = ((logprobs > values).sum(dim=-1) + 1).tolist()
    tops = _tops(logprobs, [vocab_size if k < 0 else min(k, vocab_size) for k in num_top])
    return [
        TokenLogprobs(token_id=token, logprob=value, rank=rank, top_ids=top_ids, top_logprobs=top_values)
        for token, value, rank, (top_ids, top_values) in zip(
            ids[:, 0].tolist(), values[:, 0].tolist(), ranks, tops, strict=True
        )
    ]


def _tops(logprobs: torch.Tensor, num_top: list[int]) -> list[tuple[list[int], list[float]]]:
    few = min(_FEW, logprobs.shape[-1])
    widths = [0 if k == 0 else few if k <= few else k for k in num_top]
    tops: list[tuple[list[int], list[float]]] = [([], [])] * len(num_top)
    for width in set(widths) - {0}:
        at = [i for i, w in enumerate(widths) if w == width]
        rows = logprobs if len(at) == len(widths) else logprobs[at]
        values, ids = rows.topk(width)
        for i, row_ids, row_values in zip(at, ids.tolist(), values.tolist(), strict=True):
            tops[i] = (row_ids[: num_top[i]], row_values[: num_top[i]])
    return tops
