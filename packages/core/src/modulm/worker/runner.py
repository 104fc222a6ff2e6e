"""One step: update the batch, run the program, sample, take note. This file is the worker's straight line.

Touches no tensor itself: `program.py` and `sampler.py` do. Knows no users and no memory.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from modulm.interrupts import released
from modulm.types import Plan, SampledTokens, StepResult, TokenLogprobs
from modulm.worker.batch import Batch, Step
from modulm.worker.row import NO_LOGPROBS
from modulm.worker.sampler import Sampler

if TYPE_CHECKING:
    from modulm.worker.program import Program

_SCORED_NUMBERS = 1 << 24
"""Prompt logits are computed this many numbers (64 MiB) at a time."""
_NO_TOKEN = "No token can be chosen: the logits are not finite (a number in the model overflowed) or all are forbidden."


class Runner:
    """Executes plans, one after the other, from one thread."""

    def __init__(self, batch: Batch, program: "Program", sampler: Sampler, vocab_size: int) -> None:
        self._batch = batch
        self._program = program
        self._sampler = sampler
        self._rows_at_once = max(1, _SCORED_NUMBERS // vocab_size)

    def execute(self, plan: Plan) -> StepResult:
        """Run one step. When it raises, no sequence has advanced; the batch knows the plan's sequences and blocks."""
        self._sampler.update_state(self._batch.update(plan))
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
        rows = [step.rows[i] for i in step.sampling]
        logits = self._program.logits(hidden, step.last_tokens)
        allowed = None
        if masks is not None:
            entry_rows = {entry: at for at, entry in enumerate(step.sampling)}
            allowed = (np.array([entry_rows[entry] for entry in masks.entries], dtype=np.int64), masks.wait())
        token_ids, logprobs = self._sampler.sample(logits, rows, allowed)
        for i, token_id in zip(step.sampling, token_ids, strict=True):
            if token_id < 0:
                sampled[i].error = _NO_TOKEN
            else:
                sampled[i].token_ids = [token_id]
        if logprobs is not None:
            for i, token_id, entry in zip(step.sampling, token_ids, logprobs, strict=True):
                if entry is not None and token_id >= 0:
                    sampled[i].logprobs = [entry]
        if min(token_ids) < 0:
            rows = [row for row, token_id in zip(rows, token_ids, strict=True) if token_id >= 0]
            token_ids = [token_id for token_id in token_ids if token_id >= 0]
        self._batch.append(rows, token_ids)
