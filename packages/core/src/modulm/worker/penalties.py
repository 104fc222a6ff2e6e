"""Repetition, presence and frequency penalties, by vLLM's formulas, on the tokens that occur and no others.

Repetition (CTRL, arXiv 1909.05858) counts prompt and output: positive logits are divided, others multiplied. Frequency
and presence (OpenAI) count the output only.
"""

from collections.abc import Sequence

import numpy as np
import torch

from modulm.worker.token_counts import TokenCounts

_FLOAT32 = np.finfo(np.float32)


class Penalties:
    """Those rows of a batch that penalise, with their factors as tensors.

    Args:
        at: Rows of the logits that it changes.
        counts: Their token counts; live.
        parameters: Their rows of `PARAMETERS`.
    """

    def __init__(self, at: Sequence[int], counts: Sequence[TokenCounts], parameters: np.ndarray) -> None:
        self._at = np.asarray(at, dtype=np.int64)
        self._counts = counts
        names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
        factors = np.stack([parameters[name] for name in names])
        # A repetition penalty of 0 or infinity would make NaN of a forbidden token's -inf, or of a logit of 0.
        factors[0] = factors[0].clip(_FLOAT32.tiny, _FLOAT32.max)
        self._factors = factors.astype(np.float32)

    def apply(self, logits: torch.Tensor) -> None:
        """Change logits, float32 [n, vocab_size], in place."""
        lengths = [len(counts.token_ids) for counts in self._counts]
        device = logits.device
        rows = torch.from_numpy(np.repeat(self._at, lengths)).to(device)
        ids = torch.from_numpy(np.concatenate([counts.token_ids for counts in self._counts])).to(device)
        occurred = torch.from_numpy(np.concatenate([counts.output_counts for counts in self._counts])).to(device)
        repetition, frequency, presence = torch.from_numpy(np.repeat(self._factors, lengths, axis=1)).to(device)
        values = logits[rows, ids]
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= frequency * occurred
        values -= presence * (occurred > 0)
        values.clamp_(max=float(_FLOAT32.max))
        logits[rows, ids] = values
