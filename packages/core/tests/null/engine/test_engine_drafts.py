"""Drafts in plans: what they may take, what they must leave, and what statistics say of them."""


def _drafting(sim, right=True, most=4, **options):
    """An engine whose speculator knows what comes, or what does not."""
    engine, executor = sim.make_engine(**options)

    def draft(request, output):
        tokens = sim.expected_output(request, executor.layout)[0][len(output) :][:most]
        return tokens if right else [(token + 1) % sim.VOCABULARY for token in tokens]

    executor.draft = draft
    return engine, executor


def _run(sim, engine, executor, *requests):
    for request in requests:
        engine.submit(request)
    outputs = sim.run(engine)
    for request in requests:
        assert sim.joined(outputs[request.request_id]) == sim.expected_output(request, executor.layout)
    sim.check_accounts(engine._scheduler)
    assert engine._scheduler.kv.pool.num_free == engine._scheduler.kv.pool.num_usable
    return [[(s.request_id, s.num_tokens, len(s.draft_token_ids)) for s in plan.scheduled] for plan in executor.plans]


def test_a_step_brings_the_drafts_and_one_more(sim):
    engine, executor = _drafting(sim)
    plans = _run(sim, engine, executor, sim.make_request("r", [1, 2, 3], 12))
    assert [plan for plan in plans if plan] == [[("r", 3, 0)], [("r", 5, 4)], [("r", 5, 4)], [("r", 1, 0)]]
    stats = engine.stats()
    drafts = stats.scheduler.spec_decoding_stats
    assert (drafts.num_drafts, drafts.num_draft_tokens, drafts.num_accepted_tokens) == (2, 8, 8)
    assert drafts.num_accepted_tokens_per_pos == [2, 2, 2, 2]
    assert stats.iteration.num_generation_tokens == 12
    assert engine.stats().scheduler.spec_decoding_stats is None


def test_wrong_drafts_cost_steps_no_tokens(sim):
    engine, executor = _drafting(sim, right=False)
    _run(sim, engine, executor, sim.make_request("r", [1, 2, 3], 9))
    drafts = engine.stats().scheduler.spec_decoding_stats
    assert (drafts.num_accepted_tokens, drafts.num_accepted_tokens_per_pos) == (0, [0, 0, 0, 0])


def test_drafts_take_what_the_budget_leaves(sim):
    engine, executor = _drafting(sim, max_num_batched_tokens=8)
    requests = [sim.make_request(str(i), [1, 2, i], 12, seed=i) for i in range(3)]
    plans = _run(sim, engine, executor, *requests)
    assert max(sum(tokens for _, tokens, _ in plan) for plan in plans) == 8
    assert [("0", 5, 4), ("1", 2, 1), ("2", 1, 0)] in plans


def test_drafts_leave_every_sequence_a_block_and_preempt_nobody(sim):
    # Three blocks: the first would draft into the last of them, which the second needs one step later.
    engine, executor = _drafting(sim, right=False, layout=sim.make_layout(4, 4))
    _run(sim, engine, executor, sim.make_request("a", [1], 9), sim.make_request("b", [1, 2, 3], 3, seed=1))
    assert engine.stats().iteration.num_preempted_reqs == 0


def test_what_held_is_in_the_prefix_cache_and_what_did_not_is_not(sim):
    engine, executor = _drafting(sim)
    first = sim.make_request("a", [1, 2, 3], 6)
    _run(sim, engine, executor, first)
    said = sim.expected_output(first, executor.layout)[0]
    engine.submit(sim.make_request("b", [1, 2, 3, *said, 0], 3))
    outputs = sim.run(engine)["b"]
    assert outputs[-1].num_cached_tokens == 8, "the last step filled the second block"
