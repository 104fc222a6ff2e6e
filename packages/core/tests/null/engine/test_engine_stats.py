"""What the engine counts: every prompt token once, every client request once, times from the client's arrival."""

import time

import pytest


def totals(reports):
    stats = [report.iteration.prompt_token_stats for report in reports]
    return sum(each.computed for each in stats), sum(each.local_cache_hit for each in stats)


def run_with_reports(sim, engine):
    """Run to the end, a report after every step."""
    reports = []
    while engine.has_work():
        engine.step()
        reports.append(engine.stats())
    return reports


def test_cached_and_computed_prompt_tokens_are_counted_apart(sim):
    engine, _ = sim.make_engine(sim.make_layout(4, 40))
    engine.submit(sim.make_request("a", range(10), 2))
    assert totals(run_with_reports(sim, engine)) == (10, 0)
    engine.submit(sim.make_request("b", range(10), 2))
    assert totals(run_with_reports(sim, engine)) == (2, 8)  # two blocks of four are there


def test_a_long_prompt_counts_as_it_is_computed(sim):
    engine, _ = sim.make_engine(sim.make_layout(4, 40), max_num_batched_tokens=4)
    engine.submit(sim.make_request("a", range(10), 1))
    counts = [report.iteration.num_prompt_tokens for report in run_with_reports(sim, engine)]
    assert [count for count in counts if count] == [4, 4, 2]


@pytest.mark.parametrize("caching", [True, False])
def test_prompt_tokens_count_once_whatever_is_preempted(sim, caching):
    engine, _ = sim.make_engine(sim.make_layout(2, 11), max_num_batched_tokens=5, enable_prefix_caching=caching)
    prompts = [range(i, i + 7) for i in (0, 10, 0, 20, 10)]
    for number, prompt in enumerate(prompts):
        engine.submit(sim.make_request(str(number), prompt, 9))
    reports = run_with_reports(sim, engine)
    assert sum(report.iteration.num_preempted_reqs for report in reports) > 0
    assert sum(totals(reports)) == sum(map(len, prompts))
    assert (totals(reports)[1] > 0) == caching


def test_completions_of_one_client_request_are_told_of_together(sim):
    engine, _ = sim.make_engine(sim.make_layout(4, 100))
    for index, max_tokens in enumerate((3, 7, 5)):
        engine.submit(sim.make_request(f"a-{index}", [1, 2], max_tokens, n=3, fanout_salt="a"))
    engine.submit(sim.make_request("b", [3], 4))
    reports = [report.iteration for report in run_with_reports(sim, engine)]
    told = [
        pair
        for report in reports
        for pair in zip(report.n_params_iter, report.max_num_generation_tokens_iter, strict=True)
    ]
    assert told == [(1, 4), (3, 7)]


def test_latencies_begin_where_the_client_arrived(sim):
    engine, _ = sim.make_engine()
    engine.submit(sim.make_request("late", [1, 2], 3, arrival_time=time.time() - 5))
    engine.submit(sim.make_request("ahead", [1, 2], 3, arrival_time=time.time() + 5))
    engine.submit(sim.make_request("unsaid", [1, 2], 3))
    sim.run(engine)
    iteration = engine.stats().iteration
    ended = {each.request_id: each for each in iteration.finished_requests}
    assert ended["late"].e2e_latency == pytest.approx(5, abs=0.5) and ended["late"].queued_time < 0.5
    assert ended["late"].first_token_latency == pytest.approx(iteration.time_to_first_tokens_iter[0])
    assert all(0 <= ended[name].e2e_latency < 0.5 for name in ("ahead", "unsaid"))
    each = ended["unsaid"]
    assert each.inference_time == pytest.approx(each.prefill_time + each.decode_time)
    assert each.mean_time_per_output_token == pytest.approx(each.decode_time / 2)


def test_a_request_that_ends_before_it_began_has_no_times(sim):
    engine, _ = sim.make_engine()
    engine.submit(sim.make_request("a", [1], 3))
    engine.abort(["a"])
    engine.step()
    (ended,) = engine.stats().iteration.finished_requests
    assert (ended.finish_reason, ended.inference_time, ended.prefill_time, ended.decode_time) == ("abort", 0, 0, 0)


def test_the_front_end_says_why_it_ends_a_request(sim):
    engine, _ = sim.make_engine()
    engine.submit(sim.make_request("a", [1], 30))
    engine.step()
    engine.abort(["a"], "stop")
    assert [output.finish_reason for output in engine.step()] == ["stop"]
    assert [each.finish_reason for each in engine.stats().iteration.finished_requests] == ["stop"]
