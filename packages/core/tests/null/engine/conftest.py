"""A worker without tensors, for the engine's tests: it keeps a physical KV store and samples from what it reads there.

What is written at a position depends on the adapter and on every token up to it, as in a transformer. Each sampled
token is a hash of the whole visible context *read back through the block table*, after every slot has been compared
with what the sequence's own tokens say. `expected_output` computes the same without blocks, steps or neighbours.
`MODULM_HYPOTHESIS=deep` runs the property tests for minutes instead of seconds.
"""

import os
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from modulm.config import EngineConfig
from modulm.engine.loop import Engine
from modulm.errors import EngineError
from modulm.interfaces.executor import Executor
from modulm.sampling_params import SamplingParams
from modulm.types import Adapter, KVGroup, KVLayout, Request, SampledTokens, StepResult, TokenLogprobs

_quiet = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("quick", max_examples=120, derandomize=True, database=None, **_quiet)
settings.register_profile("deep", max_examples=5000, **_quiet)

VOCABULARY = 7


def deep_or_quick():
    """Settings of the property tests, by environment."""
    return settings.get_profile(os.environ.get("MODULM_HYPOTHESIS", "quick"))


def make_layout(block_size=4, num_blocks=100, windows=(None,)):
    groups = tuple(KVGroup(layer_names=(f"l{g}",), sliding_window=w) for g, w in enumerate(windows))
    return KVLayout(block_size=block_size, num_blocks=num_blocks, groups=groups)


def make_request(request_id, prompt, max_tokens=4, **options):
    own = {"adapter", "cache_salt", "fanout_salt", "priority", "arrival_time", "seed", "stop_token_ids"}
    params = SamplingParams(max_tokens=max_tokens, **{k: v for k, v in options.items() if k not in own})
    fields = {k: v for k, v in options.items() if k in own}
    return Request(request_id=request_id, prompt_token_ids=list(prompt), params=params, max_tokens=max_tokens, **fields)


def _adapter_number(adapter: Adapter | None) -> int:
    return int.from_bytes(adapter.key.encode(), "big") if adapter else -1


def _fingerprints(request: Request, token_ids: list[int], num_groups: int) -> list[list[int]]:
    """Per group and position, what a worker writes there."""
    state, chain = _adapter_number(request.adapter), []
    for token in token_ids:
        state = hash((state, token))
        chain.append(state)
    return [[hash((value, g, p)) for p, value in enumerate(chain)] for g in range(num_groups)]


def _sample(request: Request, num_output: int, seen: list[list[int]]) -> int:
    token = hash((request.seed or 0, *(tuple(values) for values in seen))) % VOCABULARY
    return VOCABULARY if token in request.stop_token_ids and num_output < request.params.min_tokens else token


def _first_visible(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def expected_output(request: Request, layout: KVLayout) -> tuple[list[int], str]:
    """What the request gives when it has the machine for itself: tokens and finish reason."""
    tokens, output = list(request.prompt_token_ids), []
    while True:
        written = _fingerprints(request, tokens, len(layout.groups))
        last = len(tokens) - 1
        seen = [
            row[_first_visible(last, group.sliding_window) :] for row, group in zip(written, layout.groups, strict=True)
        ]
        token = _sample(request, len(output), seen)
        tokens.append(token)
        output.append(token)
        if token in request.stop_token_ids:
            return output, "stop"
        if len(output) == request.max_tokens:
            return output, "length"


class _WorkerSequence:
    def __init__(self, new, num_groups):
        self.request = new.request
        self.token_ids = new.token_ids
        self.tables = [[] for _ in range(num_groups)]
        self.num_computed = None


class FakeExecutor(Executor):
    """See the module.

    Attributes:
        fail: "before" or "after" (writing half of the step) makes the next step raise `EngineError`.
        errors: Ids whose next sampled token is an error instead.
        draft: What a speculator would propose: called with request and output so far.
        plans: Every plan that was executed.
    """

    def __init__(self, layout):
        self.layout = layout
        self.store = {}
        self.sequences = {}
        self.plans = []
        self.fail = None
        self.errors = set()
        self.draft = lambda request, output: []
        self.is_shut_down = False

    def kv_layout(self):
        return self.layout

    def shutdown(self):
        self.is_shut_down = True

    def execute(self, plan):
        fail, self.fail = self.fail, None
        if fail == "before":
            raise EngineError("it rained in")
        self.plans.append(plan)
        for request_id in plan.forget:
            self.sequences.pop(request_id, None)
        for new in plan.new:
            assert new.request.request_id not in self.sequences
            self.sequences[new.request.request_id] = _WorkerSequence(new, len(self.layout.groups))
        slots = set()
        for number, scheduled in enumerate(plan.scheduled):
            if fail == "after" and number >= len(plan.scheduled) // 2:
                raise EngineError("it rained in")
            self._write(scheduled, slots)
        return StepResult(sampled=[self._read(scheduled) for scheduled in plan.scheduled])

    def _write(self, scheduled, slots):
        sequence = self.sequences[scheduled.request_id]
        assert sequence.num_computed in (None, scheduled.start)
        end = scheduled.start + scheduled.num_tokens
        assert scheduled.num_tokens > 0
        token_ids = sequence.token_ids + scheduled.draft_token_ids
        assert end <= len(token_ids)
        assert end == len(token_ids) or not scheduled.draft_token_ids
        sequence.num_computed = end - len(scheduled.draft_token_ids)
        for table, new in zip(sequence.tables, scheduled.new_block_ids, strict=True):
            table.extend(new)
        written = _fingerprints(sequence.request, token_ids[:end], len(sequence.tables))
        for table, values in zip(sequence.tables, written, strict=True):
            for position in range(scheduled.start, end):
                slot = self._slot(table, position)
                assert slot[0] != 0, "written to the null block"
                assert slot not in slots, "two sequences write one slot"
                slots.add(slot)
                self.store[slot] = values[position]

    def _slot(self, table, position):
        return table[position // self.layout.block_size], position % self.layout.block_size

    def _read(self, scheduled):
        sequence = self.sequences[scheduled.request_id]
        answer = self._answer(sequence, scheduled, self._seen(sequence, scheduled, []))
        for number, draft in enumerate(scheduled.draft_token_ids, 1):
            if not answer.token_ids or answer.token_ids[-1] != draft:
                break
            sequence.num_computed += 1
            drafted = scheduled.draft_token_ids[:number]
            answer.token_ids += self._answer(sequence, scheduled, self._seen(sequence, scheduled, drafted)).token_ids
        if answer.token_ids:
            num_prompt = len(sequence.request.prompt_token_ids)
            answer.draft_token_ids = self.draft(sequence.request, sequence.token_ids[num_prompt:])
        return answer

    def _seen(self, sequence, scheduled, drafted):
        """What is read behind these drafts, of what the step has written."""
        end = scheduled.start + scheduled.num_tokens - len(scheduled.draft_token_ids) + len(drafted)
        expected = _fingerprints(sequence.request, sequence.token_ids[:end], len(sequence.tables))
        seen = []
        for table, values, group in zip(sequence.tables, expected, self.layout.groups, strict=True):
            first = _first_visible(scheduled.start, group.sliding_window)
            read = [self.store.get(self._slot(table, p)) for p in range(first, end)]
            assert read == values[first:end], f"{scheduled.request_id} reads what is not its own"
            seen.append(read[_first_visible(end - 1, group.sliding_window) - first :])
        return seen

    def _answer(self, sequence, scheduled, seen):
        request, end = sequence.request, sequence.num_computed
        assert scheduled.samples == (end == len(sequence.token_ids))
        answer = SampledTokens(request_id=request.request_id)
        if scheduled.samples:
            if request.request_id in self.errors:
                answer.error = "logits are not numbers"
                return answer
            num_output = len(sequence.token_ids) - len(request.prompt_token_ids)
            answer.token_ids = [_sample(request, num_output, seen)]
            sequence.token_ids = sequence.token_ids + answer.token_ids
        if request.params.prompt_logprobs is not None:
            prompt = request.prompt_token_ids
            answer.prompt_logprobs = [
                TokenLogprobs(token_id=prompt[p + 1], logprob=-float(p), rank=1, top_ids=[], top_logprobs=[])
                for p in range(scheduled.start, min(end, len(prompt) - 1))
            ]
        return answer


def check_accounts(scheduler):
    """No block lost, none held by fewer or more than its count says, the null block by nobody."""
    pool = scheduler.kv.pool
    held = [0] * len(pool.ref_counts)
    for sequence in scheduler.running:
        for table in sequence.tables.groups:
            assert len(table) == sequence.tables.num_blocks
            for block in table:
                held[block] += block != 0
    assert pool.ref_counts == held
    assert held[0] == 0
    assert pool.num_free + sum(1 for count in held if count) == pool.num_usable
    assert all(sequence.tables is None for sequence in scheduler.waiting)
    for queue in (scheduler.running, scheduler.waiting):
        assert [s.order for s in queue] == sorted(s.order for s in queue)


def make_engine(layout=None, *, max_model_len=None, **options):
    executor = FakeExecutor(layout or make_layout())
    return Engine(EngineConfig(model="fake", **options), executor, max_model_len=max_model_len), executor


def run(engine, most=500):
    """Step until nothing is left to do; return all outputs per id, in order."""
    outputs = {}
    for _ in range(most):
        if not engine.has_work():
            return outputs
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("the engine does not come to an end")


def joined(outputs):
    """All tokens and the finish reason of one request's outputs, of which only the last may have one."""
    assert [o.finish_reason is not None for o in outputs] == [False] * (len(outputs) - 1) + [True]
    return [token for o in outputs for token in o.token_ids], outputs[-1].finish_reason


@pytest.fixture(scope="session")
def sim():
    """Everything above, since test modules cannot import it."""
    return SimpleNamespace(**{name: value for name, value in globals().items() if not name.startswith("_")})
