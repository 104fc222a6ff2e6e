"""Sampling kernels, native on every instruction set and core's two, against brute force in float64.

A drawn token is right when its share of the cumulated weight, computed in float64, holds the number that was drawn, to
a tolerance of what float32 weights leave open. Examples in which a rule decides by less than that are passed over.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from modulm.interfaces.sampling import NO_TOKEN, DrawParameters, Penalties
from modulm.reference.sampling_numpy import NumpySampling
from modulm.reference.sampling_torch import TorchSampling
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.sampling import NativeSampling

ISAS = [name for name in ("generic", "avx2", "avxvnni", "avx512", "neon") if _native.can_run(name)]
SIZES = [1, 2, 5, 16, 31, 32, 33, 511, 513, 1024, 1500, 4099]


class OnTensors:
    """`TorchSampling` under arrays, so that all are tested alike; what it writes in place is seen."""

    def __init__(self):
        self._kernels = TorchSampling(torch.device("cpu"))

    def __getattr__(self, name):
        return lambda logits, *rest: getattr(self._kernels, name)(torch.from_numpy(logits), *rest)


MAKERS = {name: lambda name=name: NativeSampling(name) for name in ISAS}
MAKERS |= {"numpy": NumpySampling, "torch": OnTensors}
everywhere = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread():
    """Threads that wait for each other on a busy machine make tiny tensors slow a hundredfold."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def logits_of(rows, size, seed=0, deviation=3.0, step=None):
    """Return float32 [rows, size]; rounded to `step`, so that there are equal ones."""
    numbers = np.random.default_rng([seed, rows, size]).normal(0, deviation, (rows, size))
    return (numbers if step is None else np.round(numbers / step) * step).astype(np.float32)


def parameters_of(count=1, temperature=1.0, min_p=0.0, top_k=0, top_p=1.0):
    with np.errstate(divide="ignore"):
        log_min_p = np.log(np.full(count, min_p)).astype(np.float32)
    return DrawParameters(
        temperature=np.full(count, temperature, np.float32),
        log_min_p=log_min_p,
        top_k=np.full(count, top_k, np.int64),
        top_p=np.full(count, top_p, np.float64),
    )


def ordered(row):
    return sorted(range(len(row)), key=lambda i: (-float(row[i]), i))


@everywhere
@pytest.mark.parametrize("size", SIZES)
def test_argmax(size, make):
    logits = logits_of(7, size, step=0.5)
    rows = np.array([6, 0, 3])
    assert make().argmax(logits, rows).tolist() == [ordered(logits[row])[0] for row in rows]


@everywhere
@pytest.mark.parametrize("size", [1, 17, 1024, 1500])
def test_rows_without_a_finite_best_get_no_token(size, make):
    kernels = make()
    for place in {0, size // 2, size - 1}:
        for spoiling in (np.nan, np.inf, -np.nan):
            logits = logits_of(3, size)
            logits[1, place] = spoiling
            assert (kernels.argmax(logits, np.arange(3)) == NO_TOKEN).tolist() == [False, True, False]
            for options in ({}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}):
                drawn = kernels.draw(logits, np.arange(3), parameters_of(3, **options), np.full(3, 0.5))
                assert (drawn == NO_TOKEN).tolist() == [False, True, False]
    logits[:] = -np.inf
    assert kernels.argmax(logits, np.arange(3)).tolist() == [NO_TOKEN] * 3
    assert kernels.draw(logits, np.arange(3), parameters_of(3), np.full(3, 0.5)).tolist() == [NO_TOKEN] * 3


@everywhere
@pytest.mark.parametrize("size", SIZES)
def test_mask(size, make):
    rng = np.random.default_rng(size)
    logits = logits_of(3, size)
    bitmask = rng.integers(0, 2**32, (2, -(-size // 32)), dtype=np.uint32)
    bitmask[rng.random(bitmask.shape) < 0.5] = 0xFFFFFFFF
    expected = logits.copy()
    for at, row in enumerate([2, 0]):
        for token in range(size):
            if not int(bitmask[at, token // 32]) >> (token % 32) & 1:
                expected[row, token] = -np.inf
    make().mask(logits, np.array([2, 0]), bitmask)
    np.testing.assert_array_equal(logits, expected)


@everywhere
def test_bias(make):
    logits = logits_of(3, 20)
    logits[1, 4], logits[1, 5] = np.inf, np.nan
    rows, ids = np.array([0, 0, 1, 1, 2]), np.array([3, 19, 4, 5, 0])
    values = np.array([2.5, -np.inf, -np.inf, -np.inf, 1e38], np.float32)
    expected = logits.copy()
    for row, token, value in zip(rows, ids, values, strict=True):
        expected[row, token] = -np.inf if value == -np.inf else expected[row, token] + value
    make().bias(logits, rows, ids, values)
    np.testing.assert_array_equal(logits, expected)


@everywhere
def test_penalties(make):
    rng = np.random.default_rng(5)
    logits = logits_of(4, 50)
    logits[2, 7], logits[0, 0] = -np.inf, 3e38
    rows, lengths = np.array([2, 0, 3]), [5, 9, 0]
    starts = np.array([0, 5, 14, 14])
    ids = np.concatenate([[7], rng.permutation(np.arange(8, 50))[:4], [0], rng.permutation(np.arange(1, 50))[:8]])
    counts = rng.integers(0, 4, 14).astype(np.float32)
    factors = np.array([[1.3, 0.5, 2.0], [0.5, -0.25, 1.0], [1.5, -1.0, 1.0]], np.float32)
    expected = logits.astype(np.float64)
    for at, row in enumerate(rows):
        repetition, frequency, presence = factors[:, at].astype(np.float64)
        for place in range(starts[at], starts[at] + lengths[at]):
            x = expected[row, ids[place]]
            x = x / repetition if x > 0 else x * repetition
            x -= frequency * counts[place] + presence * (counts[place] > 0)
            expected[row, ids[place]] = min(x, np.finfo(np.float32).max)
    make().penalise(logits, rows, Penalties(starts, ids, counts, factors))
    np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=1e-6)


class Drawn:
    """Brute force in float64: each token's share of the cumulated weight that decides the draw."""

    def __init__(self, row, temperature, min_p, top_k, top_p):
        row = row.astype(np.float64)
        scaled = (row - row.max()) / temperature
        weights = np.exp(scaled)
        if min_p > 0:
            self.is_clear(np.abs(scaled - np.log(min_p)).min() > 1e-5)
            weights[scaled < np.log(min_p)] = 0
        order = list(range(len(row)))
        has_k = 0 < top_k < len(row)
        if has_k or top_p < 1:
            order = ordered(row)
            total = weights.sum()
            if has_k:
                order = order[:top_k]
                total = weights[order].sum()
            before = np.cumsum(weights[order]) - weights[order]
            if top_p < 1:
                self.is_clear(np.abs(before[weights[order] > 0] - top_p * total).min() > 1e-5 * total)
                order = [token for token, each in zip(order, before, strict=True) if each < top_p * total]
        self.weight = dict(zip(order, weights[order], strict=True))
        self.end = dict(zip(order, np.cumsum(weights[order]), strict=True))
        self.total = weights[order].sum()

    is_clear = staticmethod(assume)

    def allows(self, token, number):
        if self.weight.get(token, 0) <= 0:
            return False
        slack, sought = 1e-5 * self.total, number * self.total
        return self.end[token] - self.weight[token] - slack <= sought <= self.end[token] + slack


numbers_in = st.floats(0, 1 - 2.0**-52)
draws = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([1.0, 0.05, 0.7, 3.0, 50.0]),
        "min_p": st.sampled_from([0.0, 0.0, 1e-4, 0.13, 1.0]),
        "top_k": st.sampled_from([0, 0, 1, 3, 40, 65, 600, 10**6]),
        "top_p": st.sampled_from([1.0, 1.0, 0.03, 0.5, 0.913, 0.99987]),
    }
)


@everywhere
@settings(max_examples=120, deadline=None)
@given(
    options=draws,
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 50),
    step=st.sampled_from([None, 0.25, 4.0]),
    forbidden=st.sampled_from([0.0, 0.5, 0.99]),
    numbers=st.lists(numbers_in, min_size=1, max_size=8),
)
def test_draws(make, options, size, seed, step, forbidden, numbers):
    logits = logits_of(1, size, seed=seed, step=step)
    logits[0, 1:][np.random.default_rng(seed).random(size - 1) < forbidden] = -np.inf
    oracle = Drawn(logits[0], **options)
    before = logits.copy()
    kernels = make()
    for number in [0.0, 1 - 2.0**-52, *numbers]:
        (token,) = kernels.draw(logits, np.array([0]), parameters_of(**options), np.array([number]))
        assert oracle.allows(int(token), number), (token, number)
    np.testing.assert_array_equal(logits, before)


SPIKED = logits_of(1, 49152, seed=7)
SPIKED[0, ::3000] += 12
VOCABULARIES = {
    "a trained model's": SPIKED,
    "flat": np.zeros((1, 49152), np.float32),
    "rising": np.linspace(-30, 0, 49152, dtype=np.float32)[None],
    "rising by the last bit": (1 + np.arange(49152) * 2.0**-23).astype(np.float32)[None],
    "one token": np.where(np.arange(49152) == 31000, 5.0, -np.inf).astype(np.float32)[None],
    "both zeros": np.where(np.arange(49152) % 2, 0.0, -0.0).astype(np.float32)[None],
}


@everywhere
@pytest.mark.parametrize("name", VOCABULARIES)
def test_draws_from_a_large_vocabulary(name, make, monkeypatch):
    monkeypatch.setattr(Drawn, "is_clear", staticmethod(lambda holds: None))
    logits, kernels = VOCABULARIES[name], make()
    for options in (
        {"temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0},
        {"temperature": 0.8, "min_p": 0.0, "top_k": 0, "top_p": 0.9513},
        {"temperature": 20.0, "min_p": 0.0, "top_k": 0, "top_p": 0.9513},
        {"temperature": 0.8, "min_p": 0.0, "top_k": 1000, "top_p": 1.0},
        {"temperature": 0.8, "min_p": 0.0, "top_k": 30_000, "top_p": 0.7},
        {"temperature": 0.8, "min_p": 0.0513, "top_k": 50, "top_p": 0.9513},
    ):
        oracle = Drawn(logits[0], **options)
        for number in (0.0, 0.1234, 0.5, 0.98765, 1 - 2.0**-52):
            (token,) = kernels.draw(logits, np.array([0]), parameters_of(**options), np.array([number]))
            assert oracle.allows(int(token), number) or number > 0.999, (options, number, token)


MIXED = DrawParameters(
    temperature=np.array([1.0, 0.5, 1.0, 2.0, 1.0, 9.0], np.float32),
    log_min_p=np.log(np.array([0.01, 0.3, 1e-9, 0.2, 1e-9, 1e-9])).astype(np.float32),
    top_k=np.array([0, 5, 100, 0, 700, 0]),
    top_p=np.array([1.0, 0.9, 1.0, 0.7, 0.99, 0.999]),
)


@everywhere
def test_a_row_does_not_depend_on_its_neighbours_nor_on_threads(make):
    kernels, logits = make(), logits_of(6, 9000, step=0.125)
    numbers = np.random.default_rng(0).random(6)
    before = _native.num_threads()
    results = []
    try:
        for num_threads in (1, 3):
            _native.set_num_threads(num_threads)
            results.append(kernels.draw(logits, np.arange(6), MIXED, numbers).tolist())
            order = np.array([4, 1, 5, 0, 3, 2])
            turned = DrawParameters(**{name: array[order] for name, array in vars(MIXED).items()})
            drawn = kernels.draw(logits, order, turned, numbers[order])
            results.append(drawn[np.argsort(order)].tolist())
        for row in range(6):
            one = DrawParameters(**{name: array[row : row + 1] for name, array in vars(MIXED).items()})
            (token,) = kernels.draw(logits[row : row + 1], np.array([0]), one, numbers[row : row + 1])
            assert token == results[0][row]
    finally:
        _native.set_num_threads(before)
    assert results == [results[0]] * 4


def test_all_kernels_draw_the_same_tokens():
    """Of 180 draws none falls into the last bits in which they differ; numbers and logits are always the same ones."""
    logits = logits_of(6, 20_000, seed=3)
    tokens = {}
    for name, make in MAKERS.items():
        rng = np.random.default_rng(1)
        tokens[name] = [make().draw(logits, np.arange(6), MIXED, rng.random(6)).tolist() for _ in range(30)]
    assert all(each == tokens["numpy"] for each in tokens.values())


@everywhere
@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 20),
    step=st.sampled_from([None, 0.5]),
    counts=st.lists(st.integers(0, 4099), min_size=1, max_size=4),
)
def test_scores(make, size, seed, step, counts):
    rows = len(counts)
    logits = logits_of(rows + 1, size, seed=seed, step=step)
    wide = logits.astype(np.float64)
    expected = wide - wide.max(1, keepdims=True)
    expected -= np.log(np.exp(expected).sum(1, keepdims=True))
    token_ids = np.random.default_rng(seed).integers(0, size, rows)
    num_top = np.minimum(counts, size).astype(np.int64)
    scores = make().scores(logits, np.arange(1, rows + 1), token_ids, num_top)
    for at in range(rows):
        row, token, count = logits[at + 1], token_ids[at], num_top[at]
        assert scores.logprobs[at] == pytest.approx(expected[at + 1, token], abs=2e-6, rel=2e-6)
        assert scores.ranks[at] == 1 + sum(float(x) > row[token] for x in row)
        assert scores.top_ids[at, :count].tolist() == ordered(row)[:count]
        best = expected[at + 1, scores.top_ids[at, :count]]
        np.testing.assert_allclose(scores.top_logprobs[at, :count], best, atol=2e-6, rtol=2e-6)


@everywhere
def test_scores_beside_a_row_of_nan(make):
    logits = logits_of(3, 700)
    clean = make().scores(logits, np.arange(3), np.array([5, 6, 7]), np.array([2, 3, 2]))
    logits[1, 20] = np.nan
    spoilt = make().scores(logits, np.arange(3), np.array([5, 0, 7]), np.array([2, 3, 2]))
    assert np.isnan(spoilt.logprobs[1])
    for before, after in zip(clean, spoilt, strict=True):
        np.testing.assert_array_equal(before[[0, 2], ...], after[[0, 2], ...][..., : before.shape[-1]])


def test_arguments_that_do_not_fit_are_refused():
    kernels, logits = NativeSampling(), logits_of(2, 40)
    one, two = np.zeros(1, np.int64), np.arange(2)

    def ones(*shape):
        return np.ones(shape, np.float32)

    refused = [
        lambda: kernels.argmax(logits, np.array([2])),
        lambda: kernels.argmax(logits, np.array([-1])),
        lambda: kernels.argmax(np.zeros((1, 0), np.float32), one),
        lambda: kernels.mask(logits, two, np.zeros((2, 1), np.uint32)),
        lambda: kernels.mask(logits, two, np.zeros((1, 2), np.uint32)),
        lambda: kernels.bias(logits, one, np.array([40]), np.zeros(1, np.float32)),
        lambda: kernels.bias(logits, two, one, np.zeros(1, np.float32)),
        lambda: kernels.penalise(logits, one, Penalties(np.array([0, 1]), np.array([-1]), ones(1), ones(3, 1))),
        lambda: kernels.penalise(logits, one, Penalties(np.array([0, 2]), one, ones(1), ones(3, 1))),
        lambda: kernels.penalise(logits, two, Penalties(np.array([0, 2, 1]), one, ones(1), ones(3, 2))),
        lambda: kernels.penalise(logits, two, Penalties(np.array([0, 1, 1]), one, ones(1), ones(3, 1))),
        lambda: kernels.draw(logits, two, parameters_of(1), np.zeros(2)),
        lambda: kernels.draw(logits, two, parameters_of(2), np.zeros(1)),
        lambda: kernels.scores(logits, one, np.array([40]), one),
        lambda: kernels.scores(logits, one, one, np.array([41])),
        lambda: kernels.scores(logits, one, one, np.array([-1])),
    ]
    for call in refused:
        with pytest.raises(ValueError, match="sampling: "):
            call()
    for wrong in (logits.astype(np.float64), logits[:, ::2], logits[0]):
        with pytest.raises(TypeError):
            kernels.argmax(wrong, one)


def test_sampling_imports_no_torch():
    script = (
        "import sys, numpy as np; from modulm_kernels_cpu.provider import CPUKernels; "
        "CPUKernels().sampling().argmax(np.zeros((1, 9), np.float32), np.zeros(1, np.int64)); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
