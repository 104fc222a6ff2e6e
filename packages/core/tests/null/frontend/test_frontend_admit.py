"""What becomes of prompts and parameters: requests for the engine, or refusals with the numbers."""

import pytest

from modulm import SamplingParams
from modulm.errors import ConfigError, RequestError


@pytest.fixture
def submit(make_frontend, engine):
    """Submit a prompt to a fresh frontend; returns what reached the engine."""

    def submit(prompt, params=None, *, options=None, **fields):
        make_frontend(**(options or {})).submit(prompt, params or SamplingParams(), **fields)
        return engine.submitted

    return submit


def refused(submit, prompt, params=None, **options):
    with pytest.raises(RequestError) as error:
        submit(prompt, params, options=options)
    return str(error.value)


def test_every_form_of_prompt(submit, bpe):
    ids = bpe.encode("the dog")
    for prompt in ("the dog", ids, tuple(ids), {"prompt": "the dog"}, {"prompt_token_ids": ids, "prompt": "shown"}):
        assert submit(prompt)[-1].prompt_token_ids == ids
    assert submit({"prompt": "x", "cache_salt": "s", "multi_modal_data": None})[-1].cache_salt == "s"
    assert submit({"prompt": "x", "cache_salt": "s"}, cache_salt="t")[-1].cache_salt == "t"


@pytest.mark.parametrize("prompt", ["", [], {"prompt": ""}, {"prompt_token_ids": []}])
def test_an_empty_prompt_is_refused(submit, engine, prompt):
    assert "empty" in refused(submit, prompt)
    assert engine.submitted == []


def test_an_empty_text_on_a_tokenizer_with_bos_is_served(submit, sp):
    assert submit("", options={"tokenizer": sp})[-1].prompt_token_ids == [1]


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ([""], "not a list of whole numbers"),
        ([True], "not a list of whole numbers"),
        (3, "type int"),
        (None, "type NoneType"),
        ({}, "neither 'prompt' nor 'prompt_token_ids'"),
        ({"prompt": 3}, "is a int"),
        ({"prompt_token_ids": "12"}, "not a list of whole numbers"),
        ({"promt": "x"}, "'promt' .*Did you mean 'prompt'"),
        ({"prompt": "x", "multi_modal_data": {}}, "'multi_modal_data'"),
        ({"prompt": "x", "cache_salt": ""}, "cache_salt"),
    ],
)
def test_what_is_no_prompt_is_refused(submit, prompt, why):
    with pytest.raises(RequestError, match=why):
        submit(prompt)


@pytest.mark.parametrize("length", [64, 65, 2000])
def test_a_prompt_that_fills_the_model_is_refused_with_both_numbers(submit, length):
    message = refused(submit, [9] * length)
    assert f"{length:,} tokens" in message and "limit is 64" in message and f"by at least {length - 63:,}" in message


def test_max_tokens_fills_the_model_and_is_clipped_to_it(submit):
    assert submit([9] * 50, SamplingParams(max_tokens=None))[-1].max_tokens == 14
    assert submit([9] * 50, SamplingParams(max_tokens=100))[-1].max_tokens == 14
    assert submit([9] * 50, SamplingParams(max_tokens=3))[-1].max_tokens == 3
    assert submit([9] * 63, SamplingParams(max_tokens=3))[-1].max_tokens == 1


def test_min_tokens_against_what_is_left(submit):
    assert submit([9] * 50, SamplingParams(min_tokens=14, max_tokens=None))
    message = refused(submit, [9] * 50, SamplingParams(min_tokens=15, max_tokens=20))
    assert "min_tokens=15" in message and "50" in message and "64" in message and "14" in message


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"stop_token_ids": [-1]}, -1),
        ({"stop_token_ids": [191222]}, 191222),
        ({"allowed_token_ids": [3, 9999]}, 9999),
        ({"logit_bias": {191222: 1.0}}, 191222),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(submit, bpe, options, number):
    message = refused(submit, [9], SamplingParams(**options))
    assert str(number) in message and str(bpe.vocab_size - 1) in message and next(iter(options)) in message


def test_prompt_ids_outside_the_vocabulary_are_refused(submit):
    assert "9999" in refused(submit, [9, 9999])
    assert "-4" in refused(submit, [9, -4])


def test_the_models_vocabulary_counts_not_the_tokenizers(submit):
    assert submit([9999], options={"hf": {"vocab_size": 10000}})
    assert "token id" in refused(submit, "the <tool>", hf={"vocab_size": 300})


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_the_engine_gives_are_refused(submit, name):
    assert submit([9], SamplingParams(**{name: 20}))
    message = refused(submit, [9], SamplingParams(**{name: 21}))
    assert f"{name}=21" in message and "max_logprobs is 20" in message
    assert f"{name}=-1" in refused(submit, [9], SamplingParams(**{name: -1}))
    assert submit([9], SamplingParams(**{name: -1}), options={"max_logprobs": -1})
    assert submit([9], SamplingParams(**{name: -1}), options={"max_logprobs": 100000})


def test_truncating_keeps_the_last_tokens(submit):
    ids = list(range(10, 110))
    assert submit(ids, SamplingParams(truncate_prompt_tokens=5))[-1].prompt_token_ids == ids[-5:]
    assert submit(ids[:3], SamplingParams(truncate_prompt_tokens=5))[-1].prompt_token_ids == ids[:3]
    filled = submit(ids, SamplingParams(truncate_prompt_tokens=-1, max_tokens=10))[-1]
    assert filled.prompt_token_ids == ids[-54:] and filled.max_tokens == 10
    message = refused(submit, ids, SamplingParams(truncate_prompt_tokens=65))
    assert "65" in message and "64" in message
    assert "64 tokens" in refused(submit, ids, SamplingParams(truncate_prompt_tokens=64))


def test_bad_words_in_all_tokenisations(submit, bpe):
    params = SamplingParams(bad_words=["dog", "\n"], n=2, temperature=1.0)
    want = bpe.tokenisations_of("dog") + bpe.tokenisations_of("\n")
    assert [request.bad_words_token_ids for request in submit([9], params)] == [want, want]
    assert "'  '" in refused(submit, [9], SamplingParams(bad_words=["  "]))


def test_several_completions_differ_in_id_and_seed_only(submit):
    params = SamplingParams(n=3, seed=2**64 - 2, prompt_logprobs=1)
    first, second, third = submit([9, 10], params, request_id="client")
    assert [r.seed for r in (first, second, third)] == [2**64 - 2, 2**64 - 1, 0]
    assert len({first.request_id, second.request_id, third.request_id, "client"}) == 4
    assert first.fanout_salt == second.fanout_salt == third.fanout_salt is not None
    assert [r.params.prompt_logprobs for r in (first, second, third)] == [1, None, None]
    single = submit([9], priority=3, options={"scheduling_policy": "priority"})[-1]
    assert single.fanout_salt is None and single.seed is None and single.priority == 3
    assert "16,384" in refused(submit, [9], SamplingParams(n=10**9))


def test_priorities_that_cannot_be_honoured_are_refused(submit):
    """They were passed over in silence, or broke the engine's queue."""
    by_priority = {"scheduling_policy": "priority"}
    assert submit([9], priority=0)[-1].priority == 0
    assert submit([9], priority=-(2**63), options=by_priority)[-1].priority == -(2**63)
    with pytest.raises(RequestError, match="priority=1 .*scheduling_policy='priority'"):
        submit([9], priority=1)
    for bad in ("a", None, 1.5, True, 2**63):
        with pytest.raises(RequestError, match="whole number of at most 64 bits"):
            submit([9], priority=bad, options=by_priority)


def test_ids_of_ours_are_unique(make_frontend, engine):
    frontend = make_frontend()
    for _ in range(3):
        frontend.submit([9], SamplingParams(n=2), request_id="client")
    assert len({request.request_id for request in engine.submitted}) == 6
    assert len({request.fanout_salt for request in engine.submitted}) == 3


def test_ids_that_end_the_output(submit):
    """From tokenizer, generation config and config; unless ignored; the request's own always."""
    options = {"generation_config": {"eos_token_id": [1, 5]}, "hf": {"eos_token_id": 7}}
    request = submit([9], SamplingParams(stop_token_ids=[8, 5]), options=options)[-1]
    assert request.eos_token_ids == [1, 5, 7] and request.stop_token_ids == [8, 5, 1, 7]
    request = submit([9], SamplingParams(stop_token_ids=[8], ignore_eos=True), options=options)[-1]
    assert request.stop_token_ids == [8] and request.eos_token_ids == [1, 5, 7]
    outside = {"generation_config": {"eos_token_id": 10**6}, "hf": {"eos_token_id": None}}
    assert submit([9], options=outside)[-1].eos_token_ids == [1]


def test_recommended_parameters_apply_when_none_are_given(make_frontend, engine):
    generation = {"temperature": 0.6, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1, "max_new_tokens": 7}
    frontend = make_frontend(generation_config={**generation, "do_sample": True, "min_p": None})
    frontend.submit([9])
    params = engine.submitted[-1].params
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (0.6, 0.9, 40, 1.1)
    assert engine.submitted[-1].max_tokens == 7
    frontend.submit([9], SamplingParams())
    assert engine.submitted[-1].params.temperature == 1.0
    with pytest.raises(ConfigError, match="top_p=7.*generation_config='modulm'"):
        make_frontend(generation_config={"top_p": 7}).default_params()


def test_logits_processors_may_refuse(submit):
    class Picky:
        @classmethod
        def validate_params(cls, params):
            if params.extra_args:
                raise ValueError("no extras")

    assert submit([9], options={"processors": [Picky]})
    message = refused(submit, [9], SamplingParams(extra_args={"a": 1}), processors=[Picky])
    assert "'Picky'" in message and "no extras" in message
