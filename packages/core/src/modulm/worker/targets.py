"""Which rows of logits a step needs, and which of the tokens sampled there stand: a draft does where it comes again.

A token depends on its sequence's seed, its position and what stands before it, and on nothing else; so the first
sampled token that differs from the draft is the one that would have come without drafts. Knows no logits; `runner.py`
has them computed and sampled.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from modulm.interfaces.sampling import NO_TOKEN
from modulm.worker.batch import Step
from modulm.worker.sampler import Allowed
from modulm.worker.sampling_state import Drafted


class Targets:
    """The rows of logits of one step, sequence by sequence: its newest token's, then its drafts'.

    Args:
        step: At least one sequence gets a token.
        masks: The plan's.
        verify: Whether drafts are looked at, or passed over.

    Attributes:
        index: int64, which of the step's tokens.
        rows: The batch row of each.
        drafted: The drafts that stand before each; None where nobody has any.
    """

    def __init__(self, step: Step, masks: Any, *, verify: bool) -> None:
        self._sampling = step.sampling
        self._masks = masks
        self._planned = step.drafts
        self._drafts = step.drafts if verify else None
        self.index, self.rows = step.last_tokens, [step.rows[i] for i in step.sampling]
        self.drafted: Drafted | None = None
        if self._drafts is not None:
            counts = [1 + len(draft) for draft in self._drafts]
            ends = np.cumsum(counts)
            self.index = np.arange(ends[-1]) + np.repeat(step.last_tokens - ends + counts, counts)
            self.rows = [row for row, count in zip(self.rows, counts, strict=True) for _ in range(count)]
            self.drafted = [draft[:num] for draft in self._drafts for num in range(len(draft) + 1)]

    def allowed(self) -> Allowed | None:
        """Return the rows that have a mask, and the masks, once they are filled."""
        if self._masks is None:
            return None
        firsts = {i: first for i, first, _ in self._spans(self._drafts)}
        counts = [1] * len(self._sampling) if self._planned is None else [1 + len(draft) for draft in self._planned]
        num_planned = dict(zip(self._sampling, counts, strict=True))
        rows: list[int] = []
        kept: list[int] = []
        at = 0
        for entry in self._masks.entries:
            num_seen = num_planned[entry] if self._drafts is not None else 1
            rows += range(firsts[entry], firsts[entry] + num_seen)
            kept += range(at, at + num_seen)
            at += num_planned[entry]
        bits = self._masks.wait()
        return np.array(rows, dtype=np.int64), bits if len(kept) == len(bits) else bits[kept]

    def taken(self, token_ids: list[int]) -> Iterator[tuple[int, int, int]]:
        """Yield (sequence, first, end): the tokens that each one gets; none where none can be chosen."""
        for i, first, draft in self._spans(self._drafts):
            end = first + 1
            for token in draft:
                if token_ids[end - 1] != token:
                    break
                end += 1
            # What stands behind the end of a form has no token, and is not missed.
            yield i, first, end - (token_ids[end - 1] == NO_TOKEN)

    def _spans(self, drafts: list[list[int]] | None) -> Iterator[tuple[int, int, list[int]]]:
        at = 0
        for i, draft in zip(self._sampling, drafts or [[]] * len(self._sampling), strict=True):
            yield i, at, draft
            at += 1 + len(draft)
