"""Parameters at the ends of their ranges: finite results, nothing forbidden, and the neighbours untouched.

The right answers follow from the formulas alone: a limit of the parameter, or what the mask allows.
"""

import pytest

from modulm import SamplingParams

PROMPT = [9, 10, 11]
NEIGHBOUR = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def drawn(**options):
    return SamplingParams(**{"max_tokens": 6, "ignore_eos": True, "seed": 1, **options})


@pytest.fixture
def run(tiny_llm):
    """Return the tokens that the options lead to, sampled beside a greedy neighbour that must not notice."""
    llm = tiny_llm()
    (alone,) = llm.generate(PROMPT, NEIGHBOUR)

    def tokens(params, prompt=PROMPT):
        ours, neighbour = llm.generate([prompt, PROMPT], [params, NEIGHBOUR])
        assert ours.error is None and neighbour.error is None
        assert neighbour.outputs[0].token_ids == alone.outputs[0].token_ids
        return ours.outputs[0].token_ids

    tokens.greedy = alone.outputs[0].token_ids
    return tokens


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("temperature", [1e38, 1e39, 1e300])
def test_no_temperature_lifts_a_mask(run, temperature):
    """-inf / inf is NaN: a token outside allowed_token_ids was drawn."""
    allowed = list(range(20, 30))
    got = [run(drawn(temperature=temperature, allowed_token_ids=allowed, seed=seed)) for seed in range(3)]
    assert all(set(tokens) <= set(allowed) for tokens in got)
    assert len({token for tokens in got for token in tokens}) > 3  # all alike, so they vary


@pytest.mark.parametrize("bias", [1e30, 1e38, 1e39, 1e300])
def test_the_largest_bias_decides_and_the_smallest_forbids(run, bias):
    """A bias past float32 became infinity, and the request failed."""
    assert run(drawn(temperature=0.0, logit_bias={42: bias})) == [42] * 6
    banned = {token: -bias for token in range(320) if token not in (7, 8)}
    for temperature in (0.0, 1.0):
        assert set(run(drawn(temperature=temperature, logit_bias=banned))) <= {7, 8}
        both = run(drawn(temperature=temperature, logit_bias={42: bias, **{t: -bias for t in range(40)}}))
        assert both == [42] * 6


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("penalty", [5e-324, 1e-320, 1e-45, 1e-38])
def test_the_smallest_repetition_penalty_repeats(run, penalty):
    """Dividing by it overflowed, 0 * -inf was NaN. A token that occurred and is likely at all outweighs all others."""
    assert set(run(drawn(temperature=0.0, repetition_penalty=penalty), list(range(2, 200)))) <= set(range(2, 200))
    allowed = run(drawn(temperature=1.0, repetition_penalty=penalty, allowed_token_ids=[50, 51]), [50, 51, 52])
    assert set(allowed) <= {50, 51}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("penalty", [1e38, 1e39, 1e300])
def test_the_largest_repetition_penalty_forbids_no_more_than_what_occurred(run, penalty):
    tokens = run(drawn(temperature=0.0, repetition_penalty=penalty, allowed_token_ids=[50, 51, 52, 53]), [50, 51])
    assert set(tokens) <= {50, 51, 52, 53}


def test_the_ends_of_truncation_are_greedy(run):
    for options in ({"top_p": 5e-324}, {"min_p": 1.0}, {"top_k": 1}, {"temperature": 5e-324}):
        assert run(drawn(**options)) == run.greedy


def test_truncation_that_keeps_everything_is_none(run):
    plain = run(drawn())
    for options in ({"top_k": 2**63 - 1}, {"top_k": 320}, {"top_p": 1.0}, {"min_p": 5e-324}):
        assert run(drawn(**options)) == plain


def test_seeds_at_the_ends(run):
    """64 bits, signed or unsigned; -1 is none."""
    fixed = [run(drawn(seed=seed)) for seed in (-(2**63), 2**64 - 1, 0)]
    assert fixed == [run(drawn(seed=seed)) for seed in (-(2**63), 2**64 - 1, 0)]
    assert len({tuple(tokens) for tokens in fixed}) == 3
    assert run(drawn(seed=-1)) != run(drawn(seed=-1))
