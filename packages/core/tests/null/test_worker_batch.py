"""The persistent batch against a plain model of it: dictionaries of lists, under random arrivals, ends and moves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modulm.interfaces.logits import MoveDirectionality
from modulm.sampling_params import SamplingParams
from modulm.types import NewSequence, Plan, Request, Scheduled
from modulm.worker.batch import Batch

MAX_NUM_SEQS, MAX_MODEL_LEN, BLOCK_SIZE = 5, 40, 4
WINDOWS = [None, 6]


def make_batch():
    return Batch(max_num_seqs=MAX_NUM_SEQS, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, windows=WINDOWS, seed=3)


def new_sequence(request_id, prompt, output=(), **params):
    request = Request(
        request_id=request_id, prompt_token_ids=list(prompt), params=SamplingParams(**params), max_tokens=10
    )
    return NewSequence(request=request, token_ids=[*prompt, *output])


class Engine:
    """Plays the engine's part at random, and knows for every sequence what the batch should know."""

    def __init__(self, data):
        self.data = data
        self.live = {}
        self.next_id = 0
        self.next_block = 1

    def plan(self):
        draw = self.data.draw
        forget = draw(st.lists(st.sampled_from(sorted(self.live)), unique=True)) if self.live else []
        again = [(i, self.live[i]) for i in forget if draw(st.booleans())]
        for request_id in forget:
            del self.live[request_id]
        new = []
        for request_id, old in again:
            new.append(self.arrive(request_id, old["tokens"], old["prompt"]))
        for _ in range(draw(st.integers(0, MAX_NUM_SEQS - len(self.live)))):
            prompt = draw(st.lists(st.integers(0, 999), min_size=1, max_size=9))
            new.append(self.arrive(f"r{self.next_id}", prompt, len(prompt)))
            self.next_id += 1
        order = draw(st.permutations(sorted(self.live)))
        chosen = order[: draw(st.integers(0, len(order)))]
        scheduled = [s for s in map(self.schedule, chosen) if s is not None]
        return Plan(new=new, forget=[*forget, "never seen"], scheduled=scheduled)

    def arrive(self, request_id, tokens, num_prompt):
        self.live[request_id] = {
            "tokens": list(tokens), "prompt": num_prompt, "computed": 0, "blocks": [[], []],
        }  # fmt: skip
        return new_sequence(request_id, tokens[:num_prompt], tokens[num_prompt:])

    def schedule(self, request_id):
        sequence = self.live[request_id]
        start, total = sequence["computed"], len(sequence["tokens"])
        if start == total or total > MAX_MODEL_LEN:
            return None
        count = self.data.draw(st.integers(1, total - start))
        missing = -(-(start + count) // BLOCK_SIZE) - len(sequence["blocks"][0])
        new_block_ids = []
        for blocks in sequence["blocks"]:
            fresh = list(range(self.next_block, self.next_block + missing))
            self.next_block += missing
            blocks.extend(fresh)
            new_block_ids.append(fresh)
        sequence["computed"] = start + count
        return Scheduled(
            request_id=request_id, start=start, num_tokens=count, new_block_ids=new_block_ids,
            samples=start + count == total,
        )  # fmt: skip


def check_step(batch, engine, plan):
    step = batch.step(plan)
    token_ids, positions, slots, lengths = [], [], [[], []], []
    for i, scheduled in enumerate(plan.scheduled):
        sequence = engine.live[scheduled.request_id]
        span = range(scheduled.start, scheduled.start + scheduled.num_tokens)
        token_ids += [sequence["tokens"][p] for p in span]
        positions += span
        lengths += [len(sequence["tokens"])] * len(span)
        for g, window in enumerate(WINDOWS):
            blocks = sequence["blocks"][g]
            slots[g] += [blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in span]
            needed = {p // BLOCK_SIZE for q in span for p in range(max(0, q - window + 1) if window else 0, q + 1)}
            row = step.layouts[g].block_table[i].tolist()
            assert row == [blocks[j] if j in needed else 0 for j in range(len(row))]
    assert step.token_ids.tolist() == token_ids
    assert step.positions.tolist() == positions
    assert step.sequence_lengths.tolist() == lengths
    assert step.sampling == [i for i, s in enumerate(plan.scheduled) if s.samples]
    ends = np.cumsum([s.num_tokens for s in plan.scheduled])
    assert step.last_tokens.tolist() == [ends[i] - 1 for i in step.sampling]
    for g, layout in enumerate(step.layouts):
        assert layout.slot_mapping.tolist() == slots[g]
        assert layout.seq_lens.tolist() == [s.start + s.num_tokens for s in plan.scheduled]
        assert np.diff(layout.query_start).tolist() == [s.num_tokens for s in plan.scheduled]
        kinds = [a.dtype for a in (layout.query_start, layout.seq_lens, layout.block_table, layout.slot_mapping)]
        assert kinds == [np.int32, np.int32, np.int32, np.int64]
    return step


class Recorder:
    """What a logits processor knows that follows the contract to the letter: removed, then added, then moved."""

    def __init__(self):
        self.rows = {}

    def update(self, update):
        if update is None:
            return
        for row in update.removed:
            del self.rows[row]
        for row, params, prompt_ids, output_ids in update.added:
            self.rows[row] = (params, prompt_ids, output_ids)
        for source, target, direction in update.moved:
            assert direction is MoveDirectionality.UNIDIRECTIONAL
            self.rows[target] = self.rows.pop(source)
        assert sorted(self.rows) == list(range(update.batch_size))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_batch_equals_its_plain_model(data):
    batch, engine, recorder = make_batch(), Engine(data), Recorder()
    for number in range(data.draw(st.integers(1, 8))):
        plan = engine.plan()
        version = batch.version
        update = batch.update(plan)
        assert (update is None) == (batch.version == version)
        recorder.update(update)
        assert {row.request.request_id for row in batch.rows} == set(engine.live)
        if plan.scheduled:
            step = check_step(batch, engine, plan)
            sampled = [i for i, s in enumerate(plan.scheduled) if s.samples]
            tokens = [1000 + 10 * number + i for i in sampled]
            batch.append([step.rows[i] for i in sampled], tokens)
            for i, token in zip(sampled, tokens, strict=True):
                engine.live[plan.scheduled[i].request_id]["tokens"].append(token)
        for row, sequence in enumerate(batch.rows):
            expected = engine.live[sequence.request.request_id]
            assert batch.rows[row].num_tokens == len(expected["tokens"])
            _, prompt_ids, output_ids = recorder.rows[row]
            assert prompt_ids + output_ids == expected["tokens"]
            assert len(prompt_ids) == expected["prompt"]


def test_a_row_takes_its_parameters_along():
    batch = make_batch()
    news = [new_sequence(str(i), [i], temperature=i / 10, seed=i, top_k=i) for i in range(4)]
    batch.update(Plan(new=news))
    update = batch.update(Plan(forget=["0", "2"]))
    assert list(update.removed) == [0, 2]
    assert [(s, t) for s, t, _ in update.moved] == [(3, 0)]
    assert batch.parameters["top_k"][:2].tolist() == [3, 1]
    assert batch.parameters["seed"][:2].tolist() == [3, 1]


def test_an_arrival_takes_the_place_of_one_that_left():
    batch = make_batch()
    batch.update(Plan(new=[new_sequence(str(i), [i]) for i in range(3)]))
    update = batch.update(Plan(forget=["1"], new=[new_sequence("x", [9])]))
    assert (list(update.removed), [a[0] for a in update.added], list(update.moved)) == ([1], [1], [])
    assert [row.request.request_id for row in batch.rows] == ["0", "x", "2"]


def test_same_id_forgotten_and_anew_in_one_plan():
    batch = make_batch()
    batch.update(Plan(new=[new_sequence("a", [1, 2]), new_sequence("b", [3])]))
    batch.update(Plan(forget=["a"], new=[new_sequence("a", [1, 2], [7, 8])]))
    assert batch.rows[0].output_ids == [7, 8]
    assert [row.num_tokens for row in batch.rows] == [4, 1]


def test_seeds_are_the_requests_own_or_follow_the_engines():
    first, second = make_batch(), make_batch()
    for batch in (first, second):
        batch.update(Plan(new=[new_sequence("a", [1]), new_sequence("b", [1]), new_sequence("c", [1], seed=-2)]))
    seeds = first.parameters["seed"][:3].tolist()
    assert seeds == second.parameters["seed"][:3].tolist()
    assert len(set(seeds)) == 3
    assert seeds[2] == 2**64 - 2


def test_prompt_is_scored_once():
    batch = make_batch()
    batch.update(
        Plan(new=[new_sequence("a", [1, 2], prompt_logprobs=0), new_sequence("b", [1], [2], prompt_logprobs=0)])
    )
    assert [row.num_prompt_logprobs for row in batch.rows] == [0, -2]


def test_a_plan_that_counts_otherwise_is_our_own_fault():
    batch = make_batch()
    wrong = Scheduled(request_id="a", start=0, num_tokens=1, new_block_ids=[[1], [2]], samples=True)
    plan = Plan(new=[new_sequence("a", [1, 2])], scheduled=[wrong])
    batch.update(plan)
    with pytest.raises(AssertionError, match="counts tokens otherwise"):
        batch.step(plan)
