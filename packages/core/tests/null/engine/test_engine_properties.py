"""Random traces through the scheduler: whatever arrives, leaves or fails, each request gets what it gets alone."""

import os
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from modulm.config import EngineConfig
from modulm.engine.admit import Limits, refusal
from modulm.engine.scheduler import Scheduler
from modulm.errors import EngineError
from modulm.types import Adapter, Request

_PREFIXES = ([], [1, 2, 3, 4, 5, 6, 1, 2], [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 0, 0, 0, 0], [3] * 9)


@dataclass(kw_only=True)
class Trace:
    """One random case, and what came of it."""

    layout: object
    config: EngineConfig
    arrivals: list[tuple[int, Request]]
    aborts: dict[str, tuple[int, bool]]
    fail_steps: dict[int, str]
    errors: set[str]
    drafting: str = "nothing"
    outputs: dict[str, list] = field(default_factory=dict)


def _requests(draw, sim, number):
    prefix = draw(st.sampled_from(_PREFIXES))
    prompt = prefix + draw(st.lists(st.integers(0, 3), min_size=0 if prefix else 1, max_size=10))
    adapter = draw(st.sampled_from([None, None, "a", "b"]))
    num_output = draw(st.integers(1, 25))
    common = {
        "adapter": Adapter(name="same", key=adapter, path="p") if adapter else None,
        "cache_salt": draw(st.sampled_from([None, None, None, "s"])),
        "priority": draw(st.integers(-1, 2)),
        "stop_token_ids": draw(st.lists(st.integers(0, sim.VOCABULARY - 1), max_size=2)),
        "min_tokens": draw(st.integers(0, num_output)),
        "prompt_logprobs": draw(st.sampled_from([None, None, None, 0])),
    }
    count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    if count > 1:
        common["fanout_salt"] = f"fan-{number}"
    return [sim.make_request(f"{number}-{i}", prompt, num_output, seed=i, **common) for i in range(count)]


@st.composite
def _traces(draw, sim):
    arrivals, aborts, errors = [], {}, set()
    for number in range(draw(st.integers(1, 9))):
        step = draw(st.integers(0, 12))
        for request in _requests(draw, sim, number):
            arrivals.append((step, request))
            if draw(st.integers(0, 6)) == 0:
                aborts[request.request_id] = (draw(st.integers(0, 40)), draw(st.booleans()))
            if draw(st.integers(0, 20)) == 0:
                errors.add(request.request_id)
    fail_steps = draw(st.dictionaries(st.integers(0, 30), st.sampled_from(["before", "after"]), max_size=2))
    if draw(st.booleans()):
        errors, fail_steps = set(), {}
    chunked = draw(st.booleans())
    config = EngineConfig(
        model="fake",
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.sampled_from([1, 3, 8, 16, 30] if chunked else [8, 30, 40])),
        enable_chunked_prefill=chunked,
        enable_prefix_caching=draw(st.booleans()),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
    )
    return Trace(
        layout=_tight_layout(draw, sim, [request for _, request in arrivals]),
        config=config,
        arrivals=arrivals,
        aborts=aborts,
        fail_steps=fail_steps,
        errors=errors,
        drafting=draw(st.sampled_from(["nothing", "right", "wrong", "mixed"])),
    )


def _tight_layout(draw, sim, requests):
    """A pool that holds the largest request (rarely: not even that) and little more, so that blocks run out."""
    windows = draw(st.sampled_from([(None,), (None,), (None, None), (None, 5), (4,), (3, None, 8), (1, None), ()]))
    block_size = draw(st.integers(1, 4))
    largest = max(len(r.prompt_token_ids) + r.max_tokens for r in requests)
    slack = draw(st.sampled_from([-2, 0, 0, 1, 2, 3, 5, 8, 40]))
    num_blocks = 1 + max(1, len(windows) * -(-largest // block_size) + slack)
    return sim.make_layout(block_size, num_blocks, windows)


def _emit(trace, outputs):
    for output in outputs:
        trace.outputs.setdefault(output.request_id, []).append(output)


def _arrive(trace, scheduler, step):
    config = trace.config
    limits = Limits(
        max_model_len=None,
        max_num_batched_tokens=config.max_num_batched_tokens,
        chunked_prefill=config.enable_chunked_prefill,
    )
    for at, request in trace.arrivals:
        if at == step:
            if refusal(request, limits, scheduler.kv) is None:
                scheduler.add(request)
            else:
                trace.aborts.pop(request.request_id, None)


def _abort(trace, scheduler, step, *, in_flight):
    _emit(trace, scheduler.abort([i for i, when in trace.aborts.items() if when == (step, in_flight)]))


def _check_plan(trace, scheduler, plan):
    assert sum(s.num_tokens for s in plan.scheduled) <= trace.config.max_num_batched_tokens
    assert len(scheduler.running) <= trace.config.max_num_seqs
    total = {r.request_id: len(r.prompt_token_ids) + r.max_tokens for _, r in trace.arrivals}
    assert all(s.start + s.num_tokens < total[s.request_id] for s in plan.scheduled), "a token that cannot come"
    ids = [s.request_id for s in plan.scheduled]
    assert len(set(ids)) == len(ids)
    if not trace.config.enable_chunked_prefill:
        resumed = {s.request_id for s in scheduler.running if s.num_preemptions}
        assert all(s.samples for s in plan.scheduled if s.request_id not in resumed)
    if trace.config.scheduling_policy == "fcfs" and scheduler.running and scheduler.waiting:
        assert scheduler.running[-1].order < scheduler.waiting[0].order, "overtaken"


def _speculator(sim, trace):
    """One that knows everything, one that knows nothing, and one that is right every other time, or for a while."""

    def draft(request, output):
        right = sim.expected_output(request, trace.layout)[0][len(output) :] + [1, 2, 3]
        wrong = [(token + 1) % sim.VOCABULARY for token in right]
        mixed = right[: len(output) % 3] + wrong
        return {"nothing": [], "right": right, "wrong": wrong, "mixed": mixed}[trace.drafting][: 1 + len(output) % 6]

    return draft


def _play(sim, trace):
    scheduler, executor = Scheduler(trace.config, trace.layout), sim.FakeExecutor(trace.layout)
    executor.errors = trace.errors
    executor.draft = _speculator(sim, trace)
    last_arrival = max(step for step, _ in trace.arrivals)
    for step in range(3000):
        _arrive(trace, scheduler, step)
        _abort(trace, scheduler, step, in_flight=False)
        if step > last_arrival and not scheduler.has_work():
            return scheduler, executor
        plan = scheduler.schedule()
        sim.check_accounts(scheduler)
        _check_plan(trace, scheduler, plan)
        _abort(trace, scheduler, step, in_flight=True)
        executor.fail = trace.fail_steps.get(step)
        try:
            _emit(trace, scheduler.apply(plan, executor.execute(plan)))
        except EngineError as error:
            _emit(trace, scheduler.fail(plan, str(error)))
        sim.check_accounts(scheduler)
    raise AssertionError("requests hang")


def _check_outputs(sim, trace):
    may_fail = trace.errors or trace.fail_steps
    for _, request in trace.arrivals:
        outputs = trace.outputs.get(request.request_id)
        if outputs is None:  # refused
            continue
        tokens, reason = sim.joined(outputs)
        expected, expected_reason = sim.expected_output(request, trace.layout)
        assert tokens == expected[: len(tokens)]
        if reason == "abort":
            assert request.request_id in trace.aborts
        elif reason == "error":
            assert may_fail
            assert outputs[-1].error
        else:
            assert (tokens, reason) == (expected, expected_reason)
            _check_prompt_logprobs(request, outputs)


def _check_prompt_logprobs(request, outputs):
    got = [entry.logprob for o in outputs for entry in o.prompt_logprobs or []]
    wanted = len(request.prompt_token_ids) - 1 if request.params.prompt_logprobs is not None else 0
    assert got == [-float(p) for p in range(wanted)]
    if wanted:
        assert outputs[-1].num_cached_tokens == 0


def test_each_request_ends_once_with_what_it_gives_alone(sim):
    @settings(sim.deep_or_quick())
    @given(_traces(sim))
    def check(trace):
        scheduler, executor = _play(sim, trace)
        _check_outputs(sim, trace)
        assert scheduler.kv.pool.num_free == scheduler.kv.pool.num_usable
        assert executor.sequences == {}, "the worker was not told to forget"

    check()


def test_the_deep_profile_is_named_by_the_environment(sim):
    assert sim.deep_or_quick() is settings.get_profile(os.environ.get("MODULM_HYPOTHESIS", "quick"))
