"""The sampler against a float64 re-computation in numpy: which tokens may come, how often, and what they cost.

A row's result must not depend on its neighbours, its place, or how often it was computed.
"""

import importlib.util
import math
from collections import Counter

import numpy as np
import pytest
import torch

from modulm.interfaces.sampling import NO_TOKEN, DrawParameters
from modulm.reference.sampling_numpy import NumpySampling
from modulm.reference.sampling_torch import TorchSampling
from modulm.sampling_params import SamplingParams
from modulm.types import NewSequence, Plan, Request
from modulm.worker.batch import Batch
from modulm.worker.sampler import Sampler


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads that wait for each other on a busy machine make tiny tensors slow a hundredfold."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def native():
    from modulm_kernels_cpu.sampling import NativeSampling

    return NativeSampling()


KERNELS = {"numpy": NumpySampling, "torch": lambda: TorchSampling(torch.device("cpu"))}
if importlib.util.find_spec("modulm_kernels_cpu"):
    KERNELS["native"] = native


@pytest.fixture(autouse=True, params=KERNELS)
def kernels(request):
    Bench.kernels = KERNELS[request.param]()
    return request.param


class Bench:
    """A batch with a sampler, filled with sequences that need no model."""

    kernels = None

    def __init__(self, processors=(), max_num_seqs=64, seed=0):
        self.batch = Batch(max_num_seqs=max_num_seqs, max_model_len=3000, block_size=16, windows=[None], seed=seed)
        self.sampler = Sampler(None, self.batch, self.kernels, processors=processors)

    def add(self, request_id, prompt=(1, 2, 3), output=(), eos=(), stop=(), bad_words=(), **params):
        request = Request(
            request_id=request_id, prompt_token_ids=list(prompt), params=SamplingParams(**params), max_tokens=10,
            eos_token_ids=list(eos), stop_token_ids=list(stop), bad_words_token_ids=[list(w) for w in bad_words],
        )  # fmt: skip
        self.update(Plan(new=[NewSequence(request=request, token_ids=[*prompt, *output])]))
        return self

    def update(self, plan):
        self.sampler.update_state(self.batch.update(plan))

    def sample(self, logits, rows=None):
        logits = as_logits(logits)
        return self.sampler.sample(logits, list(range(len(logits))) if rows is None else rows)


def as_logits(numbers):
    array = np.array(numbers, dtype=np.float32)
    return torch.from_numpy(array) if isinstance(Bench.kernels, TorchSampling) else array


def allowed_by_oracle(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Return the probabilities that are left, float64, in the order min-p, top-k, top-p."""
    x = np.asarray(logits, dtype=np.float64) / temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    p[p < min_p * p.max()] = 0
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
    p /= p.sum()
    if top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= top_p]] = 0
    return p / p.sum()


SETTINGS = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 3},
    {"top_k": 100},
    {"top_k": 700, "temperature": 3.0},
    {"top_p": 0.5},
    {"top_p": 0.9, "temperature": 0.7},
    {"top_p": 0.98, "temperature": 8.0},
    {"top_k": 20, "top_p": 0.8},
    {"min_p": 0.1},
    {"min_p": 0.05, "top_k": 8, "top_p": 0.95, "temperature": 1.3},
    {"top_k": 5000},
    {"top_k": 1, "temperature": 2.0},
]


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("vocab_size", [40, 300, 2000])
def test_draws_follow_the_oracles_distribution(params, vocab_size):
    logits = np.random.default_rng(vocab_size).normal(0, 3, vocab_size).astype(np.float32)
    expected = allowed_by_oracle(logits, **params)
    bench = Bench()
    for i in range(64):
        bench.add(str(i), **params)
    counts = Counter()
    draws = 40
    for _ in range(draws):
        ids = bench.sample(np.tile(logits, (64, 1))).token_ids
        counts.update(ids)
        bench.batch.append(np.arange(64), ids)
    total = 64 * draws
    assert not [token for token in counts if expected[token] == 0]
    # Cells of some thirty draws each, from the likeliest token down.
    order = np.argsort(-expected)
    cell_of = np.minimum(np.cumsum(expected[order]) * total // 30, total // 30 - 1).astype(int)
    observed = np.bincount(cell_of, np.array([counts[token] for token in order]))
    wanted = np.bincount(cell_of, expected[order]) * total
    cells, wanted = observed[wanted > 0], wanted[wanted > 0]
    chi_square = ((cells - wanted) ** 2 / wanted).sum()
    freedom = max(1, len(cells) - 1)
    # Wilson and Hilferty: the cube root of chi-square over freedom is nearly normal; 4 deviations.
    limit = freedom * (1 - 2 / (9 * freedom) + 4 * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square < limit


def test_every_token_that_may_come_does_come():
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    for params, tokens in [
        ({"top_p": 0.69}, {0, 1}),
        ({"top_p": 0.71}, {0, 1, 2}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 3, "top_p": 0.7}, {0, 1}),  # of the three's 0.9 the first two are 0.78
        ({"top_k": 3, "top_p": 0.8}, {0, 1, 2}),
        ({"min_p": 0.49}, {0, 1, 2}),
        ({"min_p": 0.51}, {0, 1}),
        ({"top_k": 0}, {0, 1, 2, 3}),
        ({"top_k": -1}, {0, 1, 2, 3}),
    ]:
        bench = Bench()
        for i in range(64):
            bench.add(str(i), seed=i, **params)
        assert set(bench.sample(np.tile(logits, (64, 1))).token_ids) == tokens, params


def test_numbers_at_the_ends_never_choose_what_is_forbidden():
    logits = np.full((1, 1000), -math.inf)
    logits[0, 400] = 3.0
    for top_k, top_p in ((0, 1.0), (5, 1.0), (100, 1.0), (0, 0.9)):
        parameters = DrawParameters(
            temperature=np.ones(1, dtype=np.float32),
            log_min_p=np.full(1, -np.inf, dtype=np.float32),
            top_k=np.array([top_k]),
            top_p=np.array([top_p]),
        )
        for number in (0.0, 1 - 2.0**-52):
            drawn = Bench.kernels.draw(as_logits(logits), np.array([0]), parameters, np.array([number]))
            assert drawn.tolist() == [400]


def test_a_row_that_changes_hands_is_seen_anew():
    bench = Bench().add("old", temperature=0.0, allowed_token_ids=[3])
    logits = [np.arange(10.0)]
    assert bench.sample(logits).token_ids == [3]
    bench.update(Plan(forget=["old"]))
    assert bench.add("new", temperature=0.0, allowed_token_ids=[4]).sample(logits).token_ids == [4]


def test_equal_logits_are_cut_to_exactly_k():
    bench = Bench()
    for i in range(64):
        bench.add(str(i), top_k=3)
    assert len(set(bench.sample(np.zeros((64, 1000))).token_ids)) == 3


MIXED = [
    {"temperature": 0.0},
    {"seed": 5},
    {"seed": 6, "top_k": 4},
    {"seed": 7, "top_k": 200, "top_p": 0.9},
    {"seed": 8, "top_p": 0.9},
    {"seed": 9, "top_p": 0.999, "temperature": 9.0},
    {"seed": 10, "min_p": 0.2},
    {"temperature": 0.0, "repetition_penalty": 2.0},
    {"seed": 99, "top_k": 1},
    {"seed": 11, "presence_penalty": 1.0, "frequency_penalty": -0.5, "temperature": 1e-4},
    {"temperature": 0.0, "logit_bias": {3: 50.0}},
    {"seed": 12, "allowed_token_ids": [4, 5, 6]},
    {"seed": 13, "min_tokens": 5, "logprobs": 2},
    {"temperature": 0.0, "logprobs": 0},
    {"seed": 14, "temperature": 1e-12},
]


def steps(bench, order, names, number=6, logits_of=None):
    """Sample `number` tokens for each name; the step's rows come in `order`."""
    out = {name: [] for name in names}
    for step in range(number):
        place = {row.request.request_id: at for at, row in enumerate(bench.batch.rows)}
        rows = [place[name] for name in order]
        sampled = bench.sample(np.stack([logits_of(name, step) for name in order]), rows)
        bench.batch.append(rows, sampled.token_ids)
        for at, name in enumerate(order):
            out[name].append((sampled.token_ids[at], sampled.logprobs[at] if sampled.logprobs else None))
    return out


def noise(name, step, vocab_size=1200):
    """Rounded as 16-bit logits are, so that there are ties."""
    values = np.random.default_rng([int(name), step]).normal(0, 2, vocab_size)
    return np.round(values * 8) / 8


def test_a_row_alone_equals_the_row_in_any_batch():
    names = [str(i) for i in range(len(MIXED))]
    alone = {}
    for name in names:
        bench = Bench().add(name, eos=[0], stop=[1], **MIXED[int(name)])
        alone |= steps(bench, [name], [name], logits_of=noise)
    rng = np.random.default_rng(1)
    for _ in range(4):
        bench = Bench()
        bench.add("bystander", temperature=1.0, top_k=1100).add("other", repetition_penalty=3.0)
        for name in rng.permutation(names):
            bench.add(str(name), eos=[0], stop=[1], **MIXED[int(name)])
        bench.update(Plan(forget=["bystander"]))  # moves the last row to the first place
        order = [str(name) for name in rng.permutation(names)]
        together = steps(bench, order, names, logits_of=noise)
        assert together == alone


def test_a_resumed_row_goes_on_as_if_nothing_had_happened():
    for number, params in enumerate(MIXED):
        whole = steps(Bench().add("1", eos=[0], **params), ["1"], ["1"], logits_of=noise)["1"]
        bench = Bench().add("1", eos=[0], **params)
        first = steps(bench, ["1"], ["1"], number=3, logits_of=noise)["1"]
        bench.update(Plan(forget=["1"]))
        bench.add("1", output=[token for token, _ in first], eos=[0], **params)
        rest = steps(bench, ["1"], ["1"], number=3, logits_of=lambda name, step: noise(name, step + 3))["1"]
        assert first + rest == whole, number


def test_unseeded_rows_are_random_but_follow_the_engines_seed():
    def run(seed):
        bench = Bench(seed=seed)
        for i in range(16):
            bench.add(str(i))
        return bench.sample(np.zeros((16, 500))).token_ids

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert len(set(run(1))) > 10


def test_tiny_temperatures_are_finite_and_greedy():
    logits = np.array([[3e4, -3e4, 2.9e4, 0.0]])
    for temperature in (1e-5, 1e-4, 1e-12, 0.0):
        assert Bench().add("1", temperature=temperature).sample(logits).token_ids == [0]


def test_greedy_and_random_rows_in_one_batch_with_a_mask():
    bench = Bench().add("g", temperature=0.0, allowed_token_ids=[2, 7]).add("r", top_k=5, allowed_token_ids=[7])
    logits = np.tile(np.arange(10.0), (2, 1))
    assert bench.sample(logits).token_ids == [7, 7]


def test_rows_with_nan_or_nothing_allowed_get_no_token_and_harm_nobody():
    bench = Bench()
    for name, params in [("a", {"temperature": 0.0}), ("b", {}), ("c", {"top_k": 2}), ("d", {"top_p": 0.5})]:
        bench.add(name, logprobs=1, seed=1, **params)
    bench.add("none", temperature=0.0, allowed_token_ids=[3], bad_words=[[3]]).add("max", temperature=0.0)
    good = np.random.default_rng(0).normal(size=(6, 50))
    clean = bench.sample(good)
    for bad in range(4):
        logits = good.copy()
        logits[bad, 10:20] = np.nan
        spoilt = bench.sample(logits)
        assert spoilt.token_ids[bad] == NO_TOKEN
        kept = [i for i in range(6) if i != bad]
        assert [spoilt.token_ids[i] for i in kept] == [clean.token_ids[i] for i in kept]
        assert [spoilt.logprobs[i] for i in kept] == [clean.logprobs[i] for i in kept]
    assert clean.token_ids[4] == NO_TOKEN
    good[5, 3] = np.inf
    assert bench.sample(good).token_ids[5] == NO_TOKEN


def penalised_by_oracle(logits, prompt, output, repetition=1.0, presence=0.0, frequency=0.0):
    x = np.asarray(logits, dtype=np.float64).copy()
    counts = Counter(output)
    for token in {*prompt, *output}:
        x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
        x[token] -= frequency * counts[token] + presence * (counts[token] > 0)
    return x


def test_penalties_equal_the_oracle_token_by_token():
    rng = np.random.default_rng(2)
    for repetition, presence, frequency in [(1.3, 0, 0), (0.7, 0.5, 0), (1.0, 1.5, -0.3), (1.9, -1.0, 1.1)]:
        prompt, output = rng.integers(0, 12, 8).tolist(), rng.integers(0, 12, 5).tolist()
        bench = Bench().add(
            "1", prompt=prompt, output=output, temperature=0.0, repetition_penalty=repetition,
            presence_penalty=presence, frequency_penalty=frequency,
        )  # fmt: skip
        for _ in range(30):
            logits = rng.normal(0, 1, 12).astype(np.float32)
            expected = penalised_by_oracle(logits, prompt, output, repetition, presence, frequency)
            token = bench.sample([logits]).token_ids[0]
            assert token == expected.argmax()
            bench.batch.append(np.array([0]), [token])
            output.append(token)


def test_bad_words_hit_the_last_token_once_the_others_are_there():
    bench = Bench().add("1", prompt=[5], temperature=0.0, bad_words=[[9], [5, 8], [8, 7, 6]])
    logits = [np.arange(10.0)]
    assert bench.sample(logits).token_ids == [8]  # 9 never; the prompt's 5 begins no word
    for output, expected in [([5], 7), ([8], 8), ([8, 7], 8), ([1, 8, 7], 8)]:
        bench = Bench().add("1", output=output, temperature=0.0, bad_words=[[9], [5, 8], [8, 7, 6]])
        assert bench.sample(logits).token_ids == [expected]
    bench = Bench().add("1", output=[8, 7], temperature=0.0, bad_words=[[8, 7, 9], [7, 8], [12345]])
    assert bench.sample(logits).token_ids == [7]


def test_min_tokens_masks_every_id_that_ends():
    bench = Bench().add("1", temperature=0.0, min_tokens=2, eos=[9, 8], stop=[7]).add("2", temperature=0.0)
    logits = np.tile(np.arange(10.0), (2, 1))
    seen = []
    for _ in range(3):
        ids = bench.sample(logits).token_ids
        bench.batch.append(np.arange(2), ids)
        seen.append(ids)
    assert seen == [[6, 9], [6, 9], [9, 9]]


def test_ids_beyond_the_vocabulary_do_no_harm():
    bench = Bench().add("1", temperature=0.0, logit_bias={10: 5.0, -1: 9.0, 2: 20.0}, allowed_token_ids=[2, 99])
    assert bench.sample([np.arange(10.0)]).token_ids == [2]


def test_logprobs_are_of_the_raw_logits():
    logits = np.random.default_rng(4).normal(0, 2, (4, 60)).astype(np.float32)
    oracle = logits.astype(np.float64)
    oracle = (
        oracle
        - np.log(np.exp(oracle - oracle.max(1, keepdims=True)).sum(1, keepdims=True))
        - oracle.max(1, keepdims=True)
    )
    bench = Bench().add("0", temperature=0.0, logprobs=3, logit_bias={11: 100.0})
    bench.add("1", seed=1, top_k=5, temperature=0.1, repetition_penalty=2.0, logprobs=0)
    bench.add("2", temperature=0.0).add("3", seed=3, logprobs=-1, allowed_token_ids=[5])
    sampled = bench.sample(logits)
    assert sampled.token_ids[0] == 11
    assert sampled.token_ids[3] == 5
    assert sampled.logprobs[2] is None
    for row, num_top in [(0, 3), (1, 0), (3, 60)]:
        entry = sampled.logprobs[row]
        order = np.argsort(-oracle[row])
        assert entry.token_id == sampled.token_ids[row]
        assert entry.logprob == pytest.approx(oracle[row][entry.token_id], abs=1e-5)
        assert entry.rank == 1 + np.flatnonzero(order == entry.token_id)[0]
        assert entry.top_ids == order[:num_top].tolist()
        assert entry.top_logprobs == pytest.approx(oracle[row][order[:num_top]].tolist(), abs=1e-5)


def test_scores_of_given_tokens():
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    entries = Bench().sampler.score(as_logits(logits.numpy()), np.array([1, 2, 3, 4, 5]), 2)
    expected = logits.double().log_softmax(-1)
    assert [e.token_id for e in entries] == [1, 2, 3, 4, 5]
    assert [e.logprob for e in entries] == pytest.approx([expected[i, i + 1].item() for i in range(5)], abs=1e-5)
    assert [e.top_ids for e in entries] == expected.topk(2).indices.tolist()
