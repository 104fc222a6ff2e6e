"""What becomes of a request: refusals, stops, aborts, failures. Every one gets exactly one last output."""

import pytest

from modulm.types import SampledTokens, StepResult


class _Scripted:
    """Gives each sequence the tokens of its script, several at a time where it says so."""

    def __init__(self, sim, *script, drafts):
        self.layout, self.script, self.drafts = sim.make_layout(), list(script), list(drafts)

    def kv_layout(self):
        return self.layout

    def execute(self, plan):
        assert all(s.samples for s in plan.scheduled)
        return StepResult(
            sampled=[
                SampledTokens(
                    request_id=s.request_id,
                    token_ids=self.script.pop(0),
                    draft_token_ids=self.drafts.pop(0) if self.drafts else [],
                )
                for s in plan.scheduled
            ]
        )

    def shutdown(self):
        pass


def _run_script(sim, request, *script, drafts=()):
    engine, _ = sim.make_engine()
    engine._executor = _Scripted(sim, *script, drafts=drafts)
    engine.submit(request)
    return sim.run(engine)[request.request_id]


def _refusal(sim, request, **options):
    engine, executor = sim.make_engine(**options)
    engine.submit(request)
    (output,) = engine.step()
    assert output.finish_reason == "error"
    assert executor.plans == []
    engine.submit(sim.make_request("next", [1, 2], 2))
    assert sim.joined(sim.run(engine)["next"])[1] == "length"
    return output.error


def test_an_empty_prompt_is_refused(sim):
    """Case F6 at the engine's door."""
    assert "The prompt is empty" in _refusal(sim, sim.make_request("r", [], 2))


def test_a_prompt_that_fills_the_model_is_refused_with_both_numbers(sim):
    """Cases F9 and F10."""
    for length, excess in ((64, "1"), (65, "2")):
        error = _refusal(sim, sim.make_request("r", [1] * length, 2), max_model_len=64)
        assert f"has {length} tokens and the model's limit is 64" in error
        assert f"Shorten it by {excess} tokens" in error


def test_prompt_and_output_may_just_fill_the_model(sim):
    """Case F8: the front end resolves a missing max_tokens to exactly this."""
    engine, _ = sim.make_engine(max_model_len=64)
    engine.submit(sim.make_request("r", [1] * 60, 4))
    assert len(sim.joined(sim.run(engine)["r"])[0]) == 4
    error = _refusal(sim, sim.make_request("r", [1] * 60, 5), max_model_len=64)
    assert "Lower max_tokens to 4" in error


def test_a_request_that_the_pool_can_never_hold_is_refused_with_the_numbers(sim):
    layout = sim.make_layout(4, 6)
    error = _refusal(sim, sim.make_request("r", [1] * 15, 7), layout=layout)
    assert "takes 6 KV blocks of 4 tokens, and the cache has 5" in error
    assert "may have 21 tokens" in error
    engine, _ = sim.make_engine(layout)
    engine.submit(sim.make_request("r", [1] * 15, 6))
    assert sim.joined(sim.run(engine)["r"])[1] == "length"


def test_without_chunked_prefill_a_prompt_over_the_budget_is_refused(sim):
    options = {"max_num_batched_tokens": 8, "enable_chunked_prefill": False}
    error = _refusal(sim, sim.make_request("r", [1] * 9, 2), **options)
    assert "has 9 tokens and a step computes at most 8" in error


def test_a_live_id_is_refused_and_the_first_goes_on(sim):
    engine, executor = sim.make_engine()
    request = sim.make_request("r", [1, 2], 3)
    engine.submit(request)
    engine.submit(sim.make_request("r", [3], 3))
    first, second = engine.step()
    assert "has not ended" in first.error
    tokens, reason = sim.joined([second, *sim.run(engine)["r"]])
    assert (tokens, reason) == sim.expected_output(request, executor.layout)


def test_a_stop_token_ends_and_is_kept(sim):
    (*_, last) = _run_script(sim, sim.make_request("r", [1], 9, stop_token_ids=[5, 6]), [3], [6], [4])
    assert (last.finish_reason, last.stop_token_id, last.token_ids) == ("stop", 6, [6])


def test_no_stop_before_min_tokens(sim):
    request = sim.make_request("r", [1], 9, stop_token_ids=[5], min_tokens=3)
    outputs = _run_script(sim, request, [5], [5], [5], [5])
    assert sim.joined(outputs) == ([5, 5, 5], "stop")


def test_a_stop_token_at_the_limit_counts_as_stop(sim):
    assert sim.joined(_run_script(sim, sim.make_request("r", [1], 2, stop_token_ids=[5]), [3], [5]))[1] == "stop"


def test_several_tokens_of_one_step_are_cut_at_the_end(sim):
    request = sim.make_request("r", [1], 9, stop_token_ids=[5])
    outputs = _run_script(sim, request, [2], [3, 5, 6], drafts=[[3, 5, 7]])
    assert sim.joined(outputs) == ([2, 3, 5], "stop")
    outputs = _run_script(sim, sim.make_request("r", [1], 4), [2], [3, 4, 6], drafts=[[3, 4, 6, 6, 6]])
    assert sim.joined(outputs) == ([2, 3, 4, 6], "length")


def test_tokens_that_were_not_drafted_are_a_fault_of_the_executor(sim):
    (*_, output) = _run_script(sim, sim.make_request("r", [1], 9), [2], [3, 4], drafts=[[5, 4]])
    assert output.finish_reason == "error"
    assert "not drafted" in output.error


def test_an_executor_that_samples_nothing_is_reported(sim):
    (output,) = _run_script(sim, sim.make_request("r", [1], 4), [])
    assert output.finish_reason == "error"
    assert "sampled no token" in output.error


def test_an_answer_that_does_not_match_the_plan_fails_the_step(sim):
    engine, executor = sim.make_engine()
    executor.execute = lambda plan: StepResult()
    engine.submit(sim.make_request("r", [1], 4))
    (output,) = engine.step()
    assert output.finish_reason == "error"
    sim.check_accounts(engine._scheduler)


def test_prompt_logprobs_are_the_same_both_times_and_fill_the_cache(sim):
    """Cases E3 and E4: n - 1 entries, whether or not the prompt is cached."""
    engine, _ = sim.make_engine(max_num_batched_tokens=5)
    for i in range(2):
        engine.submit(sim.make_request(str(i), range(12), 2, prompt_logprobs=1))
        outputs = sim.run(engine)[str(i)]
        assert [e.token_id for o in outputs for e in o.prompt_logprobs or []] == list(range(1, 12))
        assert outputs[-1].num_cached_tokens == 0
    engine.submit(sim.make_request("plain", range(12), 2))
    assert sim.run(engine)["plain"][-1].num_cached_tokens == 8


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_abort_at_any_time_replies_and_frees(sim, num_steps):
    engine, executor = sim.make_engine(max_num_batched_tokens=4)
    engine.submit(sim.make_request("r", [1] * 6, 9))
    engine.submit(sim.make_request("other", [2], 9))
    outputs = [output for _ in range(num_steps) for output in engine.step()]
    engine.abort(["r", "r", "unknown"])
    rest = sim.run(engine)
    assert sim.joined([o for o in outputs if o.request_id == "r"] + rest["r"])[1] == "abort"
    assert rest["other"][-1].finish_reason == "length"
    assert executor.sequences == {}
    sim.check_accounts(engine._scheduler)


def test_abort_between_schedule_and_apply(sim):
    engine, executor = sim.make_engine()
    scheduler = engine._scheduler
    for name in ("r", "s"):
        scheduler.add(sim.make_request(name, range(8), 3))
    plan = scheduler.schedule()
    assert [o.finish_reason for o in scheduler.abort(["r"])] == ["abort"]
    scheduler.add(sim.make_request("r", [3], 1))  # a newer one of that id must not get the old one's token
    outputs = scheduler.apply(plan, executor.execute(plan))
    assert [o.request_id for o in outputs] == ["s"]
    assert sim.joined(sim.run(engine)["r"]) == sim.expected_output(sim.make_request("r", [3], 1), executor.layout)


def test_an_id_reused_right_after_abort_is_a_new_request(sim):
    """Case F22: messages are taken in order, and a late abort of an ended request does nothing."""
    engine, executor = sim.make_engine()
    engine.submit(sim.make_request("r", [1], 5))
    engine.step()
    engine.abort(["r"])
    engine.abort(["r"])
    again = sim.make_request("r", [2, 2], 5)
    engine.submit(again)
    aborted, *outputs = engine.step()
    assert aborted.finish_reason == "abort"
    assert sim.joined(outputs + sim.run(engine)["r"]) == sim.expected_output(again, executor.layout)
    engine.abort(["r"])
    assert sim.run(engine) == {}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failed_step_ends_its_sequences_only_and_leaves_no_trace(sim, when):
    layout = sim.make_layout(4, 100)
    engine, executor = sim.make_engine(layout, max_num_seqs=2)
    engine.submit(sim.make_request("done", [0] * 4, 1))
    engine.step()
    for i in range(3):
        engine.submit(sim.make_request(str(i), range(8), 3))
    executor.fail = when  # this step also forgets "done" and names two blocks that nobody may trust
    outputs = engine.step()
    assert [(o.request_id, o.finish_reason) for o in outputs] == [("0", "error"), ("1", "error")]
    assert "it rained in" in outputs[0].error
    rest = sim.run(engine)
    assert rest["2"][-1].num_cached_tokens == 0
    assert sim.joined(rest["2"]) == sim.expected_output(sim.make_request("2", range(8), 3), layout)
    assert executor.sequences == {}
    sim.check_accounts(engine._scheduler)


def test_a_step_that_is_broken_off_leaves_an_engine_that_can_go_on(sim):
    engine, executor = sim.make_engine()
    engine.submit(sim.make_request("r", range(9), 3))
    execute = executor.execute

    def interrupted(plan):
        executor.execute = execute
        raise KeyboardInterrupt

    executor.execute = interrupted
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.submit(sim.make_request("s", range(9), 3))
    outputs = sim.run(engine)
    assert "broken off" in outputs["r"][-1].error
    assert sim.joined(outputs["s"])[1] == "length"
    assert outputs["s"][-1].num_cached_tokens == 0


def test_what_was_computed_before_a_failed_step_stays_usable(sim):
    engine, executor = sim.make_engine(sim.make_layout(4, 100))
    engine.submit(sim.make_request("a", range(9), 3))
    engine.step()
    executor.fail = "before"
    assert engine.step()[0].finish_reason == "error"
    engine.submit(sim.make_request("b", range(9), 3))
    assert sim.run(engine)["b"][-1].num_cached_tokens == 8


def test_a_sequence_that_fails_harms_no_other_and_leaves_nothing_in_the_cache(sim):
    engine, executor = sim.make_engine()
    executor.errors = {"bad"}
    for name in ("bad", "good"):
        engine.submit(sim.make_request(name, range(9), 3, cache_salt=name))
    outputs = sim.run(engine)
    assert sim.joined(outputs["bad"]) == ([], "error")
    assert outputs["bad"][-1].error == "logits are not numbers"
    assert sim.joined(outputs["good"])[1] == "length"
    engine.submit(sim.make_request("retry", range(9), 3, cache_salt="bad"))
    assert sim.run(engine)["retry"][-1].num_cached_tokens == 0


def test_shutdown_replies_to_all_and_later_requests_are_refused(sim):
    engine, executor = sim.make_engine(max_num_seqs=1)
    for name in ("running", "waiting"):
        engine.submit(sim.make_request(name, [1], 9))
    engine.step()
    engine.submit(sim.make_request("new", [1], 9))
    engine.shutdown()
    engine.shutdown()
    engine.submit(sim.make_request("late", [1], 9))
    reasons = {i: outputs[-1].finish_reason for i, outputs in sim.run(engine).items()}
    assert reasons == {"running": "abort", "waiting": "abort", "new": "abort", "late": "error"}
    assert executor.is_shut_down


def test_statistics_tell_what_happened_since_the_last_report(sim):
    engine, _ = sim.make_engine(sim.make_layout(4, 11), max_num_seqs=2)
    for i in range(3):
        engine.submit(sim.make_request(str(i), [i] * 5, 3))
    engine.step()
    stats = engine.stats()
    assert (stats.scheduler.num_running_reqs, stats.scheduler.num_waiting_reqs) == (2, 1)
    assert stats.scheduler.kv_cache_usage == pytest.approx(0.4)
    assert (stats.iteration.num_prompt_tokens, stats.iteration.num_generation_tokens) == (10, 2)
    assert len(stats.iteration.time_to_first_tokens_iter) == 2
    sim.run(engine)
    stats = engine.stats()
    assert (stats.iteration.num_prompt_tokens, stats.iteration.num_generation_tokens) == (5, 7)
    assert [f.request_id for f in stats.iteration.finished_requests] == ["0", "1", "2"]
    assert stats.iteration.finished_requests[0].num_generation_tokens == 3
    assert len(stats.iteration.inter_token_latencies_iter) == 6
    assert stats.scheduler.kv_cache_usage == 0
    assert engine.stats().iteration.num_generation_tokens == 0
