"""One step: update the batch, run the program, sample, take note. This file is the worker's straight line.

Touches no tensor itself: `program.py` and `sampler.py` do. Knows no users and no memory.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from modulm.interrupts import released
from modulm.types import Plan, SampledTokens, StepResult, TokenLogprobs
from modulm.worker.batch import Batch, Step
from modulm.worker.drafting import Drafter
from modulm.worker.row import NO_LOGPROBS
from modulm.worker.sampler import Sampler
from modulm.worker.targets import Targets

if TYPE_CHECKING:
    from modulm.worker.program import Program

_SCORED_NUMBERS = 1 << 24
"""Prompt logits are computed this many numbers (64 MiB) at a time."""
_NO_TOKEN = "No token can be chosen: the logits are not finite (a number in the model overflowed) or all are forbidden."


class Runner:
    """Executes plans, one after the other, from one thread."""

    def __init__(
        self, batch: Batch, program: "Program", sampler: Sampler, vocab_size: int, drafter: Drafter | None = None
    ) -> None:
        self._batch = batch
        self._drafter = drafter
        self._program = program
        self._sampler = sampler
        self._rows_at_once = max(1, _SCORED_NUMBERS // vocab_size)

    def execute(self, plan: Plan) -> StepResult:
        """Run one step. When it raises, no sequence has advanced; the batch knows the plan's sequences and blocks."""
        self._sampler.update_state(self._batch.update(plan))
        if self._drafter is not None and plan.forget:
            self._drafter.forget(plan.forget)
        if not plan.scheduled:
            return StepResult()
        step = self._batch.step(plan)
        with released():  # the longest part; when it is broken off, no sequence has advanced
            hidden = self._program.run(step)
        sampled = [SampledTokens(request_id=scheduled.request_id) for scheduled in plan.scheduled]
        for i, row in enumerate(step.rows):
            if self._batch.rows[row].num_prompt_logprobs != NO_LOGPROBS:
                sampled[i].prompt_logprobs = self._prompt_logprobs(hidden, step, i)
        self._sample(hidden, step, sampled, plan.masks)
        return StepResult(sampled=sampled)

    def _prompt_logprobs(self, hidden: Any, step: Step, i: int) -> list[TokenLogprobs] | None:
        """Score the prompt tokens that follow those computed in this step; None when the prompt is behind us."""
        row = self._batch.rows[step.rows[i]]
        first, last = step.query_start[i], step.query_start[i + 1]
        start = int(step.positions[first])
        prompt_ids = row.request.prompt_token_ids
        count = min(start + int(last - first), len(prompt_ids) - 1) - start
        if count < 0 or start >= len(prompt_ids):
            return None
        entries: list[TokenLogprobs] = []
        for offset in range(0, count, self._rows_at_once):
            size = min(self._rows_at_once, count - offset)
            logits = self._program.logits(hidden, np.arange(first + offset, first + offset + size, dtype=np.int64))
            next_ids = np.array(prompt_ids[start + offset + 1 : start + offset + 1 + size])
            entries += self._sampler.score(logits, next_ids, row.num_prompt_logprobs)
        return entries

    def _sample(self, hidden: Any, step: Step, sampled: list[SampledTokens], masks: Any) -> None:
        if not step.sampling:
            return
        targets = Targets(step, masks, verify=self._sampler.knows_drafts)
        logits = self._program.logits(hidden, targets.index)
        token_ids, logprobs = self._sampler.sample(logits, targets.rows, targets.allowed(), targets.drafted)
        rows: list[int] = []
        tokens: list[int] = []
        for i, first, end in targets.taken(token_ids):
            if first == end:
                sampled[i].error = _NO_TOKEN
                continue
            sampled[i].token_ids = token_ids[first:end]
            rows += targets.rows[first:end]
            tokens += token_ids[first:end]
            if logprobs is not None and logprobs[first] is not None:
                sampled[i].logprobs = [entry for entry in logprobs[first:end] if entry is not None]
        self._batch.append(rows, tokens)
        if self._drafter is not None and self._sampler.knows_drafts:
            self._propose(step, sampled)

    def _propose(self, step: Step, sampled: list[SampledTokens]) -> None:
        assert self._drafter is not None
        going = [i for i in step.sampling if sampled[i].error is None]
        proposals = self._drafter.propose([self._batch.rows[step.rows[i]] for i in going])
        for i, proposed in zip(going, proposals, strict=True):
            sampled[i].draft_token_ids = proposed
