"""Who runs when: budgets, order, preemption, shared prompts. Outputs are compared with those of a request alone."""

import pytest

from modulm.types import Adapter


def _alone(sim, requests, layout):
    return {r.request_id: sim.expected_output(r, layout) for r in requests}


def _run_all(sim, engine, executor, requests):
    for request in requests:
        engine.submit(request)
    outputs = sim.run(engine)
    got = {request_id: sim.joined(parts) for request_id, parts in outputs.items()}
    assert got == _alone(sim, requests, executor.layout)
    return outputs


def _sizes(executor):
    return [{s.request_id: s.num_tokens for s in plan.scheduled} for plan in executor.plans]


def _preempted(executor):
    known = [i for plan in executor.plans for i in [n.request.request_id for n in plan.new]]
    return {i for i in known if known.count(i) > 1}


def test_a_long_prompt_is_split_and_those_decoding_keep_going(sim):
    engine, executor = sim.make_engine(max_num_batched_tokens=8)
    _run_all(sim, engine, executor, [sim.make_request("a", [2] * 3, 9), sim.make_request("b", [1] * 20, 3)])
    assert _sizes(executor)[:5] == [{"a": 3, "b": 5}, *[{"a": 1, "b": 7}] * 2, {"a": 1, "b": 1}, {"a": 1, "b": 1}]


def test_an_early_long_prompt_leaves_tokens_to_later_sequences(sim):
    engine, executor = sim.make_engine(max_num_batched_tokens=8, scheduling_policy="priority")
    engine.submit(sim.make_request("b", [2] * 3, 9, priority=1))
    engine.step()
    engine.submit(sim.make_request("a", [1] * 20, 3, priority=0))
    sim.run(engine)
    assert _sizes(executor)[1:3] == [{"b": 1, "a": 7}, {"a": 7, "b": 1}]


def test_without_chunked_prefill_prompts_are_whole(sim):
    engine, executor = sim.make_engine(max_num_batched_tokens=8, enable_chunked_prefill=False)
    _run_all(sim, engine, executor, [sim.make_request(str(i), [i] * 5, 3) for i in range(3)])
    assert _sizes(executor)[:3] == [{"0": 5}, {"0": 1, "1": 5}, {"0": 1, "1": 1, "2": 5}]


def test_a_sequence_that_outgrew_the_budget_resumes_without_chunked_prefill(sim):
    layout = sim.make_layout(2, 13)
    engine, executor = sim.make_engine(layout, max_num_batched_tokens=6, enable_chunked_prefill=False)
    _run_all(sim, engine, executor, [sim.make_request(str(i), [i] * 5, 12, cache_salt=str(i)) for i in range(2)])
    assert _preempted(executor) == {"1"}


def test_no_more_than_max_num_seqs_run(sim):
    engine, executor = sim.make_engine(max_num_seqs=2)
    _run_all(sim, engine, executor, [sim.make_request(str(i), [i], 3) for i in range(5)])
    assert max(len(sizes) for sizes in _sizes(executor)) == 2


def test_first_come_first_served(sim):
    engine, executor = sim.make_engine(max_num_seqs=1)
    _run_all(sim, engine, executor, [sim.make_request(str(i), [i], 2, priority=-i) for i in range(4)])
    assert [next(iter(sizes)) for sizes in _sizes(executor) if sizes] == ["0", "0", "1", "1", "2", "2", "3", "3"]


def test_priority_then_arrival(sim):
    engine, executor = sim.make_engine(max_num_seqs=1, scheduling_policy="priority")
    levels = [(1, 5.0), (0, 7.0), (1, 4.0), (0, 7.0)]
    requests = [sim.make_request(str(i), [i], 1, priority=p, arrival_time=t) for i, (p, t) in enumerate(levels)]
    _run_all(sim, engine, executor, requests)
    assert [next(iter(sizes)) for sizes in _sizes(executor) if sizes] == ["1", "3", "2", "0"]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_when_blocks_run_out_the_last_in_order_gives_way(sim, policy):
    """Case G1."""
    layout = sim.make_layout(2, 22)
    engine, executor = sim.make_engine(layout, scheduling_policy=policy)
    requests = [
        sim.make_request(str(i), [i] * 4, 16, priority=level, cache_salt=str(i)) for i, level in enumerate([2, 0, 1])
    ]
    _run_all(sim, engine, executor, requests)
    assert _preempted(executor) == {"2" if policy == "fcfs" else "0"}


def test_a_large_request_is_neither_lost_nor_starved_by_small_ones(sim):
    """Case G2."""
    layout = sim.make_layout(2, 12)
    engine, executor = sim.make_engine(layout, max_num_seqs=4)
    for i in range(3):
        engine.submit(sim.make_request(f"early-{i}", [i, 3], 5))
    engine.step()
    engine.submit(sim.make_request("large", [1] * 18, 3))
    finished = []
    for i in range(100):
        engine.submit(sim.make_request(f"late-{i}", [i % 5, 2], 4))
        finished += [o.request_id for o in engine.step() if o.finish_reason]
    assert finished[:4] == ["early-0", "early-1", "early-2", "large"]
    assert len(finished) > 50
    sim.run(engine)


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_completions_of_one_prompt_share_its_blocks_in_the_very_step_that_computes_them(sim, prefix_caching):
    layout = sim.make_layout(4, 100)
    engine, executor = sim.make_engine(layout, enable_prefix_caching=prefix_caching)
    requests = [sim.make_request(str(i), range(10), 4, seed=i, fanout_salt="f") for i in range(3)]
    outputs = _run_all(sim, engine, executor, requests)
    assert _sizes(executor)[0] == {"0": 10, "1": 2, "2": 2}
    first, second, third = (s.new_block_ids[0] for s in executor.plans[0].scheduled)
    assert first[:2] == second[:2] == third[:2]
    assert len({first[2], second[2], third[2]}) == 3
    assert [parts[-1].num_cached_tokens for parts in outputs.values()] == [0, 8, 8]


def test_without_prefix_caching_strangers_share_nothing(sim):
    engine, executor = sim.make_engine(enable_prefix_caching=False)
    requests = [
        sim.make_request(str(i), range(10), 4, fanout_salt=salt) for i, salt in enumerate([None, None, "a", "b"])
    ]
    outputs = _run_all(sim, engine, executor, requests)
    assert {parts[-1].num_cached_tokens for parts in outputs.values()} == {0}
    assert engine.stats().scheduler.prefix_cache_stats.queries == 0


def test_identical_requests_give_identical_outputs_and_the_later_ones_hit(sim):
    """Case G4. The last token of the prompt is always computed."""
    engine, executor = sim.make_engine(sim.make_layout(4, 100))
    cached = []
    for i in range(3):
        outputs = _run_all(sim, engine, executor, [sim.make_request(str(i), range(12), 4)])
        cached.append(outputs[str(i)][-1].num_cached_tokens)
    assert cached == [0, 8, 8]
    longer = _run_all(sim, engine, executor, [sim.make_request("longer", range(13), 4)])
    assert longer["longer"][-1].num_cached_tokens == 12
    prefix = engine.stats().scheduler.prefix_cache_stats
    assert (prefix.requests, prefix.queries, prefix.hits) == (4, 12 * 3 + 13, 8 + 8 + 12)


def test_outputs_are_shared_as_well_as_prompts(sim):
    engine, executor = sim.make_engine(sim.make_layout(4, 100))
    first = _run_all(sim, engine, executor, [sim.make_request("1", range(6), 8)])
    tokens, _ = sim.joined(first["1"])
    second = _run_all(sim, engine, executor, [sim.make_request("2", [*range(6), *tokens, 5], 3)])
    assert second["2"][-1].num_cached_tokens == 12  # the 14th token was sampled last and never computed


def test_adapters_and_salts_do_not_share(sim):
    """Case H1, and the same for `cache_salt`."""
    engine, executor = sim.make_engine()
    options = [{"adapter": Adapter(name="same", key=key, path="p")} for key in ("1", "2")] + [{"cache_salt": "s"}, {}]
    for i, option in enumerate(options):
        outputs = _run_all(sim, engine, executor, [sim.make_request(str(i), range(12), 4, **option)])
        assert outputs[str(i)][-1].num_cached_tokens == 0
    again = _run_all(sim, engine, executor, [sim.make_request("again", range(12), 4, **options[1])])
    assert again["again"][-1].num_cached_tokens == 8


def test_the_least_recently_used_prompt_is_evicted(sim):
    engine, executor = sim.make_engine(sim.make_layout(4, 8))
    for prompt in (1, 2, 1, 3):  # 3 named blocks each, of 7; then 3 needs room
        _run_all(sim, engine, executor, [sim.make_request(f"{prompt}-{len(executor.plans)}", [prompt] * 15, 1)])
    cached = {}
    for prompt in (1, 2):
        outputs = _run_all(sim, engine, executor, [sim.make_request(f"again-{prompt}", [prompt] * 15, 1)])
        cached[prompt] = outputs[f"again-{prompt}"][-1].num_cached_tokens
    assert cached == {1: 12, 2: 0}


def test_a_resumed_sequence_finds_its_own_blocks_and_reports_its_first_hit(sim):
    layout = sim.make_layout(2, 14)
    engine, executor = sim.make_engine(layout)
    requests = [sim.make_request(str(i), [i] * 5, 14, cache_salt=str(i)) for i in range(2)]
    outputs = _run_all(sim, engine, executor, requests)
    assert _preempted(executor) == {"1"}
    assert {o.num_cached_tokens for o in outputs["1"]} == {0}
    stats = engine.stats()
    assert stats.iteration.num_preempted_reqs == 1
    assert stats.scheduler.prefix_cache_stats.preempted_requests == 1
