"""What `SamplingParams` takes, what it makes of it, and what it refuses by name."""

import numpy as np
import pytest

from modulm import SamplingParams
from modulm.errors import RequestError
from modulm.sampling_params import RequestOutputKind


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": np.int64(3)}, {"top_k": 3}),
        ({"top_p": np.float32(0.5)}, {"top_p": 0.5}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"seed": np.uint64(2**64 - 1)}, {"seed": 2**64 - 1}),
        ({"seed": -1}, {"seed": None}),  # vLLM's word for none
        ({"max_tokens": np.array(7)}, {"max_tokens": 7}),
        ({"ignore_eos": np.bool_(True)}, {"ignore_eos": True}),
        ({"stop": ("a", "b")}, {"stop": ["a", "b"]}),
        ({"stop": "ab"}, {"stop": ["ab"]}),
        ({"stop": None}, {"stop": []}),
        ({"stop": (text for text in "ab")}, {"stop": ["a", "b"]}),
        ({"bad_words": "abc"}, {"bad_words": ["abc"]}),
        ({"stop_token_ids": np.array([1, 2])}, {"stop_token_ids": [1, 2]}),
        ({"stop_token_ids": {np.int32(4)}}, {"stop_token_ids": [4]}),
        ({"allowed_token_ids": np.array([1, 2])}, {"allowed_token_ids": [1, 2]}),
        ({"allowed_token_ids": (1, np.int64(2))}, {"allowed_token_ids": [1, 2]}),
        ({"logit_bias": {"5": 1, np.int64(6): np.float32(2)}}, {"logit_bias": {5: 1.0, 6: 2.0}}),
        ({"output_kind": 1}, {"output_kind": RequestOutputKind.DELTA}),
    ],
)
def test_values_become_pythons_own(options, kept):
    params = SamplingParams(**options)
    for name, value in kept.items():
        found = getattr(params, name)
        assert found == value and type(found) is type(value)
        assert not isinstance(value, list) or [type(item) for item in found] == [type(item) for item in value]
    assert params.clone() == params


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 2**63},
        {"logprobs": 10**30},
        {"max_tokens": 10**30},
        {"min_tokens": 10**30},
        {"truncate_prompt_tokens": 10**30},
        {"thinking_token_budget": -2},
        {"thinking_token_budget": 1.0},
        {"thinking_token_budget": True},
        {"seed": 2**64},
        {"temperature": 10**400},
        {"temperature": float("inf")},
        {"top_p": float("nan")},
        {"temperature": True},
        {"max_tokens": 3.0},
        {"n": np.bool_(True)},
        {"stop": 5},
        {"stop": b"x"},
        {"stop": {"a": 1}},
        {"stop": [b"a"]},
        {"stop_token_ids": 5},
        {"stop_token_ids": ["5"]},
        {"stop_token_ids": [True]},
        {"allowed_token_ids": 5},
        {"allowed_token_ids": np.array([])},
        {"bad_words": 3},
        {"logit_bias": [1, 2]},
        {"logit_bias": 5},
        {"logit_bias": {1.5: 1}},
        {"logit_bias": {"1.5": 1}},
        {"logit_bias": {True: 1}},
        {"logit_bias": {1: float("inf")}},
        {"logit_bias": {1: 10**400}},
        {"logit_bias": {1: None}},
        {"ignore_eos": "false"},
        {"detokenize": 0},
        {"skip_special_tokens": None},
        {"include_stop_str_in_output": "yes"},
        {"output_kind": "delta"},
        {"output_kind": 7},
        {"extra_args": [1]},
    ],
)
def test_what_it_cannot_be_is_refused_by_name(options):
    ((name, value),) = options.items()
    with pytest.raises(RequestError) as caught:
        SamplingParams(**options)
    assert caught.value.parameter == name
    assert str(caught.value).startswith(f"{name}=") and " is refused: " in str(caught.value)


def test_a_message_does_not_repeat_a_book():
    with pytest.raises(RequestError) as caught:
        SamplingParams(stop_token_ids=["x"] * 100_000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("temperature", "is_greedy"), [(0, True), (9e-6, True), (1e-5, False), (1.0, False)])
def test_temperatures_below_a_hundred_thousandth_are_greedy(temperature, is_greedy):
    """vLLM's `_SAMPLING_EPS`."""
    assert SamplingParams(temperature=temperature).is_greedy == is_greedy
