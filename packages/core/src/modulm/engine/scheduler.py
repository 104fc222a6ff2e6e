"""The scheduler: which sequences take part in the next step, with how many tokens, in which blocks.

Running sequences come first, in order of priority and arrival, then waiting ones as far as budget and blocks go. Both
queues are sorted, so the one to preempt is always the last of those running, and never one this step already counts
on. The head of the waiting queue is not overtaken: a large request waits until it fits, and then runs. Drafts take what
budget and blocks are left then, and never anybody's place. Knows counts; `kv/groups.py` knows the blocks, `request.py`
when a sequence stops.
"""

import time
from bisect import bisect_left, insort
from operator import attrgetter

from modulm.config import EngineConfig
from modulm.engine.grammar import SequenceGrammar
from modulm.engine.kv.groups import BlockTables, KVGroups
from modulm.engine.kv.prefix import chain_for
from modulm.engine.request import Sequence, State
from modulm.engine.stats import Recorder
from modulm.types import (
    EngineStats,
    FinishReason,
    KVLayout,
    NewSequence,
    Plan,
    Request,
    SampledTokens,
    Scheduled,
    StepOutput,
    StepResult,
)

_by_order = attrgetter("order")
_MOST_FORCED = 64
"""Tokens that a grammar forces and that are computed at once: each has a row of logits."""
_NOT_ITS_FORM = (
    "A token came that the output's form does not allow: a logits processor, or the backend, is at fault. Leave the "
    "processor out, or choose another backend."
)


class _Step:
    """A plan in the making or in flight, with the sequences behind `plan.scheduled`, entry by entry."""

    __slots__ = ("budget", "has_preempted", "plan", "sequences")

    def __init__(self, forget: list[str], budget: int) -> None:
        self.plan = Plan(new=[], forget=forget, scheduled=[])
        self.sequences: list[Sequence] = []
        self.budget = budget
        self.has_preempted = False


class Scheduler:
    """Calls come from one thread: `schedule`, then `apply` or `fail` with that plan; `add` and `abort` at any time.

    Attributes:
        kv: Block accounts.
        running, waiting: Sequences in the order in which they are served.
    """

    def __init__(self, config: EngineConfig, layout: KVLayout) -> None:
        self.kv = KVGroups(layout)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._config = config
        self._by_priority = config.scheduling_policy == "priority"
        self._live: dict[str, Sequence] = {}
        self._forget: list[str] = []
        self._step: _Step | None = None
        self._num_added = 0
        self._recorder = Recorder()

    def __contains__(self, request_id: str) -> bool:
        """Whether a request of this id is waiting or running."""
        return request_id in self._live

    def has_work(self) -> bool:
        """Whether `schedule` would give the worker anything to do."""
        return bool(self._live or self._forget)

    def add(self, request: Request, grammar: SequenceGrammar | None = None) -> None:
        """Queue a request that `admit.py` has let pass; its id is not among those that live."""
        assert request.request_id not in self._live
        self._num_added += 1
        key = (request.priority, request.arrival_time) if self._by_priority else (0, 0.0)
        chain = chain_for(request, self.kv.block_size, prefix_caching=self._config.enable_prefix_caching)
        sequence = Sequence(request, (*key, self._num_added), chain, grammar)
        sequence.may_jump = sequence.may_jump and self._config.enable_jump_forward
        sequence.times.queued = now = time.monotonic()
        waited = time.time() - request.arrival_time if request.arrival_time else 0.0
        sequence.times.arrived = now - max(0.0, waited)
        self._live[request.request_id] = sequence
        insort(self.waiting, sequence, key=_by_order)

    def abort(self, request_ids: list[str], reason: FinishReason = "abort") -> list[StepOutput]:
        """End these requests now; ids that are unknown or have ended are passed over."""
        sequences = [self._live[i] for i in dict.fromkeys(request_ids) if i in self._live]
        return [self._finish(sequence, reason) for sequence in sequences]

    def close(self) -> list[StepOutput]:
        """End every request; there is no worker left to tell."""
        outputs = self.abort(list(self._live))
        self._forget.clear()
        return outputs

    def schedule(self) -> Plan:
        """Plan one step. Blocks are held and named from here on; `apply` or `fail` must follow."""
        assert self._step is None, "the last plan was neither applied nor failed"
        step = _Step(self._forget, self._config.tokens_per_step)
        self._forget = []
        self.kv.start_step()
        self._continue_running(step)
        if not step.has_preempted:
            self._start_waiting(step)
        self._add_drafts(step)
        self._step = step
        self._recorder.num_steps += 1
        return step.plan

    def constrained(self) -> tuple[list[int], list[SequenceGrammar]]:
        """Return which entries of the plan in flight get a token in a given form, and how far each has come."""
        assert self._step is not None
        pairs = zip(self._step.sequences, self._step.plan.scheduled, strict=True)
        found = [
            (entry, sequence.grammar)
            for entry, (sequence, scheduled) in enumerate(pairs)
            if sequence.grammar is not None and scheduled.samples
        ]
        return [entry for entry, _ in found], [grammar for _, grammar in found]

    def _continue_running(self, step: _Step) -> None:
        index = 0
        while index < len(self.running) and step.budget > 0:
            sequence = self.running[index]
            # A long prompt leaves a token to each sequence behind it, so that those decoding keep going.
            num_behind = len(self.running) - index - 1
            count = min(len(sequence.token_ids) - sequence.num_computed, max(1, step.budget - num_behind))
            blocks = self._make_room(step, sequence, count)
            if blocks is None:
                return
            self._put(step, sequence, count, blocks)
            index += 1

    def _make_room(self, step: _Step, sequence: Sequence, count: int) -> list[list[int]] | None:
        """Return new blocks for `count` tokens, preempting from the end; None when the sequence itself had to go."""
        assert sequence.tables is not None
        start = sequence.num_computed
        while (blocks := self.kv.extend(sequence.tables, start, start + count)) is None:
            assert len(self.running) > 1, "a request was admitted that the whole pool cannot hold"
            victim = self.running[-1]
            self._preempt(step, victim)
            if victim is sequence:
                return None
        return blocks

    def _preempt(self, step: _Step, victim: Sequence) -> None:
        self._release(victim)
        self.running.pop()
        victim.state = State.PREEMPTED
        victim.num_preemptions += 1
        insort(self.waiting, victim, key=_by_order)
        step.plan.forget.append(victim.request_id)
        step.has_preempted = True
        self._recorder.preempted()

    def _start_waiting(self, step: _Step) -> None:
        while self.waiting and step.budget > 0 and len(self.running) < self._config.max_num_seqs:
            if not self._start(step, self.waiting[0]):
                return

    def _start(self, step: _Step, sequence: Sequence) -> bool:
        """Start the head of the waiting queue; False when budget or blocks do not suffice."""
        total = len(sequence.token_ids)
        tables = self._look_up(sequence)
        num_hit = tables.num_blocks * self.kv.block_size
        count = min(total - num_hit, step.budget)
        if num_hit + count < total and not self._may_split(total):
            return False
        if not self.kv.can_begin(tables, num_hit + count, total, others=len(self.running)):
            return False
        self.kv.begin(tables)
        room = self.kv.extend(tables, num_hit, num_hit + count)
        assert room is not None
        resumed = sequence.state is State.PREEMPTED
        if not resumed:
            sequence.num_cached_tokens = num_hit
            sequence.times.scheduled = time.monotonic()
        if self._config.enable_prefix_caching and sequence.may_read_cache:
            self._recorder.lookup(total, num_hit, resumed=resumed)
        self._recorder.prompt_tokens(sequence, num_hit, cached=True)
        sequence.tables, sequence.num_computed, sequence.state = tables, num_hit, State.RUNNING
        del self.waiting[0]
        insort(self.running, sequence, key=_by_order)
        step.plan.new.append(NewSequence(request=sequence.request, token_ids=list(sequence.token_ids)))
        self._put(step, sequence, count, [table.copy() for table in tables.groups])
        return True

    def _may_split(self, total: int) -> bool:
        """Without chunked prefill only a resumed sequence that has outgrown the budget is computed in parts."""
        return self._config.enable_chunked_prefill or total > self._config.tokens_per_step

    def _look_up(self, sequence: Sequence) -> BlockTables:
        if sequence.chain is None or not sequence.may_read_cache:
            return self.kv.longest_hit([], 0)
        # One token at the least must be computed, or there would be nothing to sample from.
        num_tokens = len(sequence.token_ids) - 1
        hashes = sequence.chain.extend(sequence.token_ids, num_tokens)
        return self.kv.longest_hit(hashes, num_tokens // self.kv.block_size)

    def _put(self, step: _Step, sequence: Sequence, count: int, new_block_ids: list[list[int]]) -> None:
        """Enter a sequence into the plan; from now on its tokens count as computed."""
        start = sequence.num_computed
        end = start + count
        step.budget -= count
        step.sequences.append(sequence)
        step.plan.scheduled.append(
            Scheduled(
                request_id=sequence.request_id,
                start=start,
                num_tokens=count,
                new_block_ids=new_block_ids,
                samples=end == len(sequence.token_ids),
            )
        )
        sequence.num_computed = end
        self._name_blocks(sequence)

    def _name_blocks(self, sequence: Sequence) -> None:
        """Offer the blocks that are full of computed tokens to the prefix cache; drafts are none until they hold."""
        tables, num_full = sequence.tables, sequence.num_computed // self.kv.block_size
        if sequence.chain is not None and tables is not None and num_full > tables.num_named:
            hashes = sequence.chain.extend(sequence.token_ids, sequence.num_computed)
            self.kv.name_blocks(tables, hashes, num_full)

    def _add_drafts(self, step: _Step) -> None:
        """Have the step verify drafts, as far as its budget goes, where they leave every running sequence a block."""
        for sequence, scheduled in zip(step.sequences, step.plan.scheduled, strict=True):
            if step.budget <= 0:
                return
            drafts = self._drafts(sequence)[: min(step.budget, sequence.most_drafts)] if scheduled.samples else []
            if not drafts:
                continue
            assert sequence.tables is not None
            end = sequence.num_computed + len(drafts)
            num_kept = len(self.running) * len(scheduled.new_block_ids)
            blocks = self.kv.extend(sequence.tables, scheduled.start, end, num_kept=num_kept)
            if blocks is not None:
                step.budget -= len(drafts)
                scheduled.num_tokens += len(drafts)
                scheduled.draft_token_ids = drafts
                scheduled.new_block_ids = [[*a, *b] for a, b in zip(scheduled.new_block_ids, blocks, strict=True)]

    def _drafts(self, sequence: Sequence) -> list[int]:
        """Return what is expected next: tokens that the grammar forces come before a speculator's."""
        drafts, sequence.drafts, sequence.jumps = sequence.drafts, [], False
        if sequence.grammar is not None and sequence.may_jump:
            forced = sequence.grammar.forced()[:_MOST_FORCED]
            if forced != drafts[: len(forced)]:
                sequence.jumps = True
                return forced
        return drafts

    def apply(self, plan: Plan, result: StepResult) -> list[StepOutput]:
        """Take in what a step brought; an answer that does not match the plan counts as a failed step."""
        if [s.request_id for s in plan.scheduled] != [s.request_id for s in result.sampled]:
            return self.fail(
                plan,
                f"The executor answered for {len(result.sampled)} sequences where the plan has {len(plan.scheduled)}, "
                "or in another order. This is a fault of the executor.",
            )
        step = self._take_step(plan)
        now = time.monotonic()
        outputs = []
        for sequence, scheduled, sampled in zip(step.sequences, plan.scheduled, result.sampled, strict=True):
            if sequence.state is State.RUNNING:
                output = self._advance(sequence, scheduled, sampled, now)
                if output is not None:
                    outputs.append(output)
        return outputs

    def _advance(
        self, sequence: Sequence, scheduled: Scheduled, sampled: SampledTokens, now: float
    ) -> StepOutput | None:
        start, end = scheduled.start, scheduled.start + scheduled.num_tokens
        error = sampled.error or _fault(scheduled, sampled)
        if error is not None:
            # Its blocks may hold what made it fail: nobody else shall read them.
            assert sequence.tables is not None
            self.kv.distrust(sequence.tables)
            return self._finish(sequence, "error", error=error)
        if start < sequence.num_prompt:
            self._recorder.prompt_tokens(sequence, end, cached=False)
        prompt_logprobs = sequence.new_prompt_logprobs(start, sampled)
        if not sampled.token_ids and prompt_logprobs is None:
            return None
        output = self._output(sequence)
        output.prompt_logprobs = prompt_logprobs
        if sampled.token_ids:
            count, reason, output.stop_token_id = sequence.append(sampled.token_ids)
            grammar = sequence.grammar
            if grammar is not None and (reason == "error" or grammar.error is not None):
                return self._finish(sequence, "error", error=grammar.error or _NOT_ITS_FORM)
            self._verified(sequence, scheduled, count)
            sequence.drafts = sampled.draft_token_ids
            output.token_ids = sampled.token_ids[:count]
            output.logprobs = sampled.logprobs[:count] if sampled.logprobs is not None else None
            self._recorder.tokens(sequence, count, now)
            if reason is not None:
                self._end(sequence, reason)
                output.finish_reason = reason
        return output

    def _verified(self, sequence: Sequence, scheduled: Scheduled, count: int) -> None:
        """Count the drafts that held as computed; `count` tokens were taken, of which the last is none of them."""
        if num_drafts := len(scheduled.draft_token_ids):
            sequence.num_computed += count - 1
            self._name_blocks(sequence)
            if not sequence.jumps:
                self._recorder.drafts(num_drafts, count - 1)
            elif count <= num_drafts:
                sequence.may_jump = False  # its masks allow other tokens too: what it says is a guess

    def fail(self, plan: Plan, reason: str) -> list[StepOutput]:
        """End every sequence of a step that failed as a whole; the others go on."""
        step = self._take_step(plan)
        self.kv.distrust_step()
        # Whether the worker came to forget these before it failed cannot be known, so they are named again.
        self._forget = plan.forget + self._forget
        return [self._finish(s, "error", error=reason) for s in step.sequences if s.state is State.RUNNING]

    def _take_step(self, plan: Plan) -> _Step:
        step = self._step
        assert step is not None and step.plan is plan, "not the plan in flight"
        self._step = None
        return step

    def _output(self, sequence: Sequence) -> StepOutput:
        return StepOutput(request_id=sequence.request_id, num_cached_tokens=sequence.num_cached_tokens)

    def _finish(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> StepOutput:
        self._end(sequence, reason)
        output = self._output(sequence)
        output.finish_reason, output.error = reason, error
        return output

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Take a sequence out of its queue, free its blocks, and have the worker forget it."""
        if sequence.state is State.RUNNING:
            self._release(sequence)
            self._forget.append(sequence.request_id)
        queue = self.running if sequence.state is State.RUNNING else self.waiting
        del queue[bisect_left(queue, sequence.order, key=_by_order)]
        sequence.state = State.FINISHED
        del self._live[sequence.request_id]
        self._recorder.finished(sequence, reason, time.monotonic())

    def _release(self, sequence: Sequence) -> None:
        assert sequence.tables is not None
        self.kv.release(sequence.tables)
        sequence.tables = None

    def stats(self) -> EngineStats:
        """Return what happened since the last call, and how things stand."""
        pool = self.kv.pool
        return self._recorder.report(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_cache_usage=1 - pool.num_free / max(1, pool.num_usable),
        )


def _fault(scheduled: Scheduled, sampled: SampledTokens) -> str | None:
    """Return what is wrong with an executor's answer about one sequence."""
    token_ids, drafts = sampled.token_ids, scheduled.draft_token_ids
    if scheduled.samples and not token_ids:
        return "The executor sampled no token. This is a fault of the executor."
    if len(token_ids) > 1 and token_ids[:-1] != drafts[: len(token_ids) - 1]:
        return "The executor took tokens that were not drafted. This is a fault of the executor."
    return None
