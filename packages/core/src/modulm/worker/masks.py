"""Tokens that a request forbids: all but `allowed_token_ids`, and the last token of a word in `bad_words`.

Ids beyond the vocabulary are passed over: the front end refuses them, and a step must not fail for one.
"""

import math
from collections.abc import Sequence

import torch

from modulm.worker.row import Row


class AllowedIds:
    """Forbids everything but a few ids, in those rows of the logits that say so."""

    def __init__(self, ids_by_row: dict[int, Sequence[int]], vocab_size: int, device: torch.device) -> None:
        self._ids = {
            row: torch.tensor([i for i in ids if 0 <= i < vocab_size], dtype=torch.int64, device=device)
            for row, ids in ids_by_row.items()
        }

    def apply(self, logits: torch.Tensor) -> None:
        """Change logits in place."""
        for row, ids in self._ids.items():
            kept = logits[row, ids]
            logits[row].fill_(-math.inf)
            logits[row, ids] = kept


def forbid_bad_words(rows: dict[int, Row], logits: torch.Tensor) -> None:
    """Forbid, in place, every token that would complete a bad word; only the output counts as its beginning."""
    vocab_size = logits.shape[-1]
    for at, row in rows.items():
        output_ids = row.output_ids
        forbidden = [
            last
            for first, last in row.bad_words
            if 0 <= last < vocab_size and (not first or output_ids[-len(first) :] == first)
        ]
        if forbidden:
            logits[at, torch.tensor(forbidden, device=logits.device)] = -math.inf
