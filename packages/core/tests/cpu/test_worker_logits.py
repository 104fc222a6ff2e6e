"""Logits processors under random arrivals, ends and moves: each row is always served by its own request's state."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modulm.interfaces.logits import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, MoveDirectionality
from modulm.reference.sampling_numpy import NumpySampling
from modulm.reference.sampling_torch import TorchSampling
from modulm.sampling_params import SamplingParams
from modulm.types import NewSequence, Plan, Request
from modulm.worker.batch import Batch
from modulm.worker.sampler import Sampler

VOCAB = 64


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads that wait for each other on a busy machine make tiny tensors slow a hundredfold."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Recording(LogitsProcessor):
    """Follows the contract to the letter and remembers what it was told."""

    made = []

    def __init__(self, config, device, is_pin_memory):
        self.rows, self.updates, self.shapes = {}, [], []
        Recording.made.append(self)

    def apply(self, logits):
        self.shapes.append(tuple(logits.shape))
        for row, (params, prompt_ids, output_ids) in self.rows.items():
            assert prompt_ids[0] == params.extra_args["prompt"]
            assert len(output_ids) == params.extra_args["outputs"][0]
            logits[row, params.extra_args["wants"]] += 1000
        return logits

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        self.updates.append(batch_update)
        if batch_update is None:
            return
        for row in batch_update.removed:
            del self.rows[row]
        for row, params, prompt_ids, output_ids in batch_update.added:
            self.rows[row] = (params, prompt_ids, output_ids)
        for source, target, _ in batch_update.moved:
            self.rows[target] = self.rows.pop(source)
        assert len(self.rows) == batch_update.batch_size


class Adapted(AdapterLogitsProcessor):
    """Forbids, per request, the token it wants least, and looks at the prompt."""

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        if not params.extra_args["adapts"]:
            return None

        def forbid(prompt_ids, output_ids, row):
            assert prompt_ids[0] == params.extra_args["prompt"]
            assert len(output_ids) == params.extra_args["outputs"][0]
            row[params.extra_args["wants"]] = -1e9
            return row

        return forbid


def host(processors):
    batch = Batch(max_num_seqs=6, max_model_len=64, block_size=16, windows=[None], seed=0)
    return batch, Sampler(None, batch, NumpySampling(), processors=processors), lambda numbers: numbers.numpy()


def device(processors):
    batch = Batch(max_num_seqs=6, max_model_len=64, block_size=16, windows=[None], seed=0)
    return (
        batch,
        Sampler(None, batch, TorchSampling(torch.device("cpu")), processors=processors),
        lambda numbers: numbers,
    )


on_both = pytest.mark.parametrize("made", [host, device])


def new_sequence(number, *, adapts):
    extra = {"wants": number % VOCAB, "prompt": number, "outputs": [0], "adapts": adapts}
    params = SamplingParams(temperature=0.0, extra_args=extra, logit_bias={(number + 1) % VOCAB: 500.0})
    request = Request(request_id=str(number), prompt_token_ids=[number], params=params, max_tokens=10)
    return NewSequence(request=request, token_ids=[number])


@on_both
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_each_row_keeps_its_own_processors(made, data):
    batch, sampler, as_logits = made([Recording, Adapted])
    recording = Recording.made[-1]
    live, next_number = {}, 0
    for _ in range(data.draw(st.integers(1, 10))):
        forget = data.draw(st.lists(st.sampled_from(sorted(live)), unique=True)) if live else []
        for number in forget:
            del live[number]
        new = []
        for _ in range(data.draw(st.integers(0, 6 - len(live)))):
            live[next_number] = new_sequence(next_number, adapts=data.draw(st.booleans()))
            new.append(live[next_number])
            next_number += 1
        sampler.update_state(batch.update(Plan(new=new, forget=[str(n) for n in forget])))
        assert (recording.updates[-1] is None) == (not new and not forget)
        chosen = data.draw(st.permutations(range(len(batch))))[: data.draw(st.integers(0, len(batch)))]
        if not chosen:
            continue
        token_ids = sampler.sample(as_logits(torch.zeros(len(chosen), VOCAB)), chosen).token_ids
        assert recording.shapes[-1] == (len(batch), VOCAB)
        for row, token in zip(chosen, token_ids, strict=True):
            extra = batch.rows[row].request.params.extra_args
            assert token == (extra["wants"] + (1 if extra["adapts"] else 0)) % VOCAB
            extra["outputs"][0] += 1
        batch.append(chosen, token_ids)


class Wishing(AdapterLogitsProcessor):
    """Adds one to the token that a request names, if it names one."""

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        wanted = (params.extra_args or {}).get("wants")

        def add(output_ids, row):
            row[wanted] += 1
            return row

        return None if wanted is None else add


def added(row, wants=None):
    return (row, SamplingParams(extra_args={"wants": wants}), [1], [])


def update(size, removed=(), add=(), moved=()):
    return BatchUpdate(batch_size=size, removed=removed, added=add, moved=moved)


def test_adapters_follow_swaps_and_overwrites():
    adapter = Wishing(None, torch.device("cpu"), False)
    adapter.update_state(update(3, add=[added(0, 1), added(1), added(2, 2)]))
    assert adapter.apply(torch.zeros(3, 4)).tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]
    adapter.update_state(update(3, moved=[(0, 2, MoveDirectionality.SWAP)]))
    assert adapter.apply(torch.zeros(3, 4)).tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    adapter.update_state(update(3, add=[added(2)], moved=[(0, 1, MoveDirectionality.UNIDIRECTIONAL)]))
    assert adapter.apply(torch.zeros(3, 4)).tolist() == [[0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    adapter.update_state(None)
    adapter.update_state(update(0, removed=[0, 1, 2]))
    assert adapter.apply(torch.zeros(3, 4)).tolist() == torch.zeros(3, 4).tolist()


class Failing(Recording):
    def update_state(self, batch_update):
        raise RuntimeError("plugin is broken")


def test_a_failing_processor_does_not_keep_news_from_the_others():
    batch, sampler, _ = host([Failing, Recording])
    recording = Recording.made[-1]
    news = batch.update(Plan(new=[new_sequence(3, adapts=False)]))
    with pytest.raises(RuntimeError, match="plugin is broken"):
        sampler.update_state(news)
    assert list(recording.rows) == [0]


class Boosting(Recording):
    """Claims to be argmax-invariant and is not: greedy rows must not see it."""

    def is_argmax_invariant(self):
        return True

    def apply(self, logits):
        self.shapes.append(tuple(logits.shape))
        logits[:, 5] = 1e6
        return logits


@on_both
def test_argmax_invariant_processors_are_for_random_rows_only(made):
    batch, sampler, as_logits = made([Boosting])
    for number, temperature in enumerate((0.0, 1.0, 0.0)):
        request = Request(
            request_id=str(number), prompt_token_ids=[1], params=SamplingParams(temperature=temperature), max_tokens=5
        )
        sampler.update_state(batch.update(Plan(new=[NewSequence(request=request, token_ids=[1])])))
    logits = torch.zeros(3, VOCAB)
    logits[:, 9] = 50.0
    assert sampler.sample(as_logits(logits), [0, 1, 2]).token_ids == [9, 5, 9]
    assert Recording.made[-1].shapes == [(3, VOCAB)]


class Scaled(Boosting):
    """Remembers the logits it is shown and forbids all of them."""

    def apply(self, logits):
        self.seen = logits.clone()
        return logits.fill_(-torch.inf)


@on_both
def test_argmax_invariant_processors_see_temperature_and_min_p_and_may_forbid_everything(made):
    batch, sampler, as_logits = made([Scaled])
    params = SamplingParams(temperature=0.5, min_p=0.2)
    request = Request(request_id="0", prompt_token_ids=[1], params=params, max_tokens=5)
    sampler.update_state(batch.update(Plan(new=[NewSequence(request=request, token_ids=[1])])))
    assert sampler.sample(as_logits(torch.tensor([[1.0, 0.5, 0.0]])), [0]).token_ids == [-1]
    assert Recording.made[-1].seen.tolist() == [[0.0, -1.0, -torch.inf]]  # exp(-2) is below 0.2
