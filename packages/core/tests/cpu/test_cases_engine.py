"""Public bug reports about sampling, log-probabilities, limits and scheduling, replayed on a tiny model.

Each test's docstring names the symptom other engines showed; the right answer is the reports'.
"""

import math

import pytest
import torch

from modulm import SamplingParams
from modulm.errors import RequestError


def ids(count, start=10):
    return {"prompt_token_ids": [start + i % 40 for i in range(count)]}


def greedy(**options):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **options})


def tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def values(prompt_logprobs):
    return [entry and {token: round(lp.logprob, 4) for token, lp in entry.items()} for entry in prompt_logprobs]


def test_min_tokens_with_several_eos_ids(tiny_llm):
    """min_tokens was ignored when the generation config has two end-of-sequence ids."""
    llm = tiny_llm()
    bias = {1: 50.0, 5: 60.0}
    short = llm.generate(ids(4), greedy(ignore_eos=False, logit_bias=bias))[0].outputs[0]
    assert short.token_ids == [5] and short.finish_reason == "stop"
    long = llm.generate(ids(4), greedy(ignore_eos=False, logit_bias=bias, min_tokens=5))[0].outputs[0]
    assert len(long.token_ids) == 6 and not {1, 5} & set(long.token_ids[:5]) and long.token_ids[5] == 5


def test_prompt_logprobs_survive_a_prefix_hit(tiny_llm):
    """The second identical request got wrong or no prompt log-probabilities: prompt of 33 tokens, block of 32."""
    llm = tiny_llm(block_size=32)
    first, second = (llm.generate(ids(33), greedy(prompt_logprobs=1))[0] for _ in range(2))
    assert values(first.prompt_logprobs) == values(second.prompt_logprobs)
    assert first.prompt_logprobs[0] is None and len(first.prompt_logprobs) == 33
    assert all(entry for entry in first.prompt_logprobs[1:])


def test_prompt_logprobs_equal_transformers(tiny_llm, tiny_folder):
    """Values and ranks, also when the prompt is computed in chunks of 7."""
    from transformers import AutoModelForCausalLM

    prompt = ids(30)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    want = torch.log_softmax(model(torch.tensor([prompt["prompt_token_ids"]])).logits[0], -1)
    for budget in (2048, 7):
        got = tiny_llm(max_num_batched_tokens=budget).generate(prompt, greedy(prompt_logprobs=2))[0].prompt_logprobs
        for position in range(1, 30):
            token = prompt["prompt_token_ids"][position]
            entry = got[position][token]
            assert entry.logprob == pytest.approx(want[position - 1, token].item(), abs=1e-4)
            assert entry.rank == (want[position - 1] > want[position - 1, token]).sum().item() + 1
            assert len(got[position]) in (2, 3)


def test_the_same_request_gives_the_same_values(tiny_llm):
    """Log-probabilities differed from run to run."""
    llm = tiny_llm()
    runs = [llm.generate(ids(12), greedy(logprobs=3))[0].outputs[0] for _ in range(3)]
    assert runs[0].logprobs == runs[1].logprobs == runs[2].logprobs
    assert runs[0].cumulative_logprob == pytest.approx(
        sum(entry[token].logprob for entry, token in zip(runs[0].logprobs, runs[0].token_ids, strict=True))
    )


def test_n_completions_stay_separate(tiny_llm):
    """n=2 streamed: choices overwrote each other."""
    llm = tiny_llm()
    params = SamplingParams(n=3, temperature=1.0, seed=4, max_tokens=12, ignore_eos=True)
    whole = llm.generate(ids(20), params)[0]
    assert [completion.index for completion in whole.outputs] == [0, 1, 2]
    assert len({tuple(completion.token_ids) for completion in whole.outputs}) == 3
    streamed = {0: [], 1: [], 2: []}
    for output in llm.stream(ids(20), params):
        for completion in output.outputs:
            streamed[completion.index] += completion.token_ids
    assert streamed == {completion.index: completion.token_ids for completion in whole.outputs}


@pytest.mark.parametrize("caching", [True, False])
def test_n_completions_share_the_prompt(tiny_llm, caching):
    """The prompt's full blocks are computed once, with and without prefix caching."""
    llm = tiny_llm(block_size=4, enable_prefix_caching=caching, num_kv_blocks=40, max_model_len=128)
    params = SamplingParams(n=8, temperature=1.0, max_tokens=4, ignore_eos=True, seed=1)
    outputs = llm.generate(ids(64), params)[0].outputs  # 8 copies of the prompt would need 128 blocks; there are 39
    assert all(len(completion.token_ids) == 4 for completion in outputs)


def test_bad_words_apply_to_every_completion(tiny_llm):
    """bad_words were ignored when n > 1."""
    llm = tiny_llm()
    params = SamplingParams(n=2, temperature=2.0, seed=3, max_tokens=60, ignore_eos=True)
    plain = llm.generate("the quick", params)[0]
    word = next(ch for ch in "eatonis" if any(ch in completion.text for completion in plain.outputs))
    banned = llm.generate("the quick", params.clone(bad_words=[word]))[0]
    forms = {llm.get_tokenizer().encode(form, add_special_tokens=False)[0] for form in (word, " " + word)}
    for completion in banned.outputs:
        assert len(completion.token_ids) == 60 and not forms & set(completion.token_ids)


@pytest.mark.parametrize("prompt", ["", [""], [], {"prompt_token_ids": []}])
def test_an_empty_prompt_is_refused_and_the_next_is_served(tiny_llm, prompt):
    """An empty prompt killed the engine."""
    llm = tiny_llm()
    if prompt == []:
        assert llm.generate([], greedy()) == []
    else:
        with pytest.raises(RequestError, match="empty"):
            llm.generate(prompt, greedy())
    assert len(tokens(llm.generate(ids(3), greedy()))[0]) == 8


def test_max_tokens_absent_fills_the_model(tiny_llm):
    """No max_tokens: fill to max_model_len minus the prompt."""
    output = tiny_llm(max_model_len=64).generate(ids(50), greedy(max_tokens=None))[0].outputs[0]
    assert len(output.token_ids) == 14 and output.finish_reason == "length"


@pytest.mark.parametrize("extra", [0, 1])
def test_a_prompt_as_long_as_the_model_is_refused(tiny_llm, extra):
    """The prompt waited for ever, or the message had no numbers."""
    llm = tiny_llm(max_model_len=64)
    with pytest.raises(RequestError, match=rf"{64 + extra}.*64"):
        llm.generate(ids(64 + extra), greedy())
    assert len(tokens(llm.generate(ids(3), greedy()))[0]) == 8


@pytest.mark.parametrize(
    "options",
    [{"logit_bias": {191222: 1.0}}, {"allowed_token_ids": [3, 9999]}, {"stop_token_ids": [-1]}, {"logprobs": 1000}],
)
def test_ids_and_counts_outside_the_model_are_refused(tiny_llm, options):
    """An id past the vocabulary was an index error in the worker and killed the engine."""
    llm = tiny_llm()
    with pytest.raises(RequestError) as refused:
        llm.generate(ids(3), greedy(**options))
    assert next(iter(options)) in str(refused.value)
    with pytest.raises(RequestError, match="9999"):
        llm.generate({"prompt_token_ids": [3, 9999]}, greedy())
    assert len(tokens(llm.generate(ids(3), greedy()))[0]) == 8


def test_greedy_and_top_k_in_one_batch(tiny_llm):
    """One greedy request and one with top_k=5 in a batch: both right."""
    llm = tiny_llm()
    sampled = SamplingParams(temperature=1.0, top_k=5, seed=1, max_tokens=8, ignore_eos=True)
    together = tokens(llm.generate([ids(5), ids(9)], [greedy(), sampled]))
    assert together == [tokens(llm.generate(ids(5), greedy()))[0], tokens(llm.generate(ids(9), sampled))[0]]


def test_top_k_zero_and_minus_one_are_off(tiny_llm):
    llm = tiny_llm()
    runs = [SamplingParams(temperature=1.0, seed=2, top_k=k, max_tokens=8, ignore_eos=True) for k in (0, -1)]
    assert tokens(llm.generate(ids(5), runs[0])) == tokens(llm.generate(ids(5), runs[1]))


@pytest.mark.parametrize("temperature", [1e-4, 1e-12])
def test_a_tiny_temperature_is_greedy(tiny_llm, temperature):
    """Tiny temperatures made inf and nan."""
    llm = tiny_llm()
    want = tokens(llm.generate(ids(5), greedy()))
    got = llm.generate(ids(5), SamplingParams(temperature=temperature, max_tokens=8, ignore_eos=True, logprobs=1))
    assert tokens(got) == want
    assert all(math.isfinite(lp.logprob) for entry in got[0].outputs[0].logprobs for lp in entry.values())


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"])
def test_nan_is_refused(name):
    with pytest.raises(RequestError, match=f"{name}=nan"):
        SamplingParams(**{name: math.nan})


def test_greedy_beside_random_with_a_mask(tiny_llm):
    """Dividing -inf by the greedy rows' dummy temperature gave nan."""
    llm = tiny_llm()
    masked = SamplingParams(temperature=1.0, seed=5, allowed_token_ids=[7, 8, 9], max_tokens=20, ignore_eos=True)
    got = tokens(llm.generate([ids(5), ids(6)], [greedy(allowed_token_ids=[7, 8], max_tokens=20), masked]))
    assert set(got[0]) <= {7, 8} and set(got[1]) <= {7, 8, 9}


def test_penalties_do_not_depend_on_neighbours(tiny_llm):
    """A with repetition_penalty=2; B with seed 99 and top_k=1: A alone and A beside B must be equal."""
    llm = tiny_llm()
    a = greedy(repetition_penalty=2.0, max_tokens=24)
    b = SamplingParams(seed=99, top_k=1, max_tokens=24, ignore_eos=True)
    alone = tokens(llm.generate(ids(30), a))[0]
    assert tokens(llm.generate([ids(30), ids(7)], [a, b]))[0] == alone
    assert tokens(llm.generate([ids(7), ids(30)], [b, a]))[1] == alone


def test_penalties_count_the_prompt_under_prefix_hits(tiny_llm):
    """The second, prefix-cached request must be penalised for the same prompt tokens."""
    llm = tiny_llm(block_size=4)
    runs = [llm.generate(ids(33), greedy(repetition_penalty=1.8, max_tokens=20))[0] for _ in range(2)]
    assert runs[1].num_cached_tokens == 32 and tokens(runs)[0] == tokens(runs)[1]


def test_an_id_reused_right_after_an_abort(tiny_llm):
    """The late abort of the first request killed the second of the same id."""
    llm = tiny_llm()
    frontend = llm._frontend
    frontend.submit(ids(4), greedy(max_tokens=50), request_id="x")
    frontend.poll()
    frontend.abort("x")
    frontend.submit(ids(4), greedy(max_tokens=5), request_id="x")
    finished = []
    for _ in range(20):
        finished += [output for output in frontend.poll() if output.finished]
    last = finished[-1]
    assert last.request_id == "x" and last.outputs[0].finish_reason == "length" and len(last.outputs[0].token_ids) == 5


def test_priority_preempts_without_an_assertion(tiny_llm):
    """More requests than blocks under the priority policy: everybody finishes, with the tokens of a run alone."""
    llm = tiny_llm(scheduling_policy="priority", block_size=4, num_kv_blocks=30, max_num_seqs=8, max_model_len=100)
    prompts = [ids(20 + i, start=10 + i) for i in range(6)]
    params = greedy(max_tokens=40)
    together = tokens(llm.generate(prompts, params, priority=[5, 4, 3, 2, 1, 0]))
    assert together == [tokens(llm.generate(prompt, params))[0] for prompt in prompts]


def test_a_big_request_among_small_ones_runs_in_the_end(tiny_llm):
    """A skipped waiting request was lost."""
    llm = tiny_llm(block_size=4, num_kv_blocks=30, max_model_len=112)
    outputs = llm.generate([ids(8), ids(100), *[ids(8, start=12 + i) for i in range(10)]], greedy())
    assert all(len(output.outputs[0].token_ids) == 8 for output in outputs)


def test_the_same_greedy_request_three_times(tiny_llm):
    """First and later identical requests differed with prefix caching."""
    llm = tiny_llm(block_size=4)
    first, second, third = (llm.generate(ids(50), greedy(max_tokens=30))[0] for _ in range(3))
    assert tokens([first]) == tokens([second]) == tokens([third])
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 48)


def test_a_seeded_request_does_not_depend_on_its_batch(tiny_llm):
    llm = tiny_llm()
    seeded = SamplingParams(temperature=1.3, top_p=0.9, seed=11, max_tokens=20, ignore_eos=True)
    alone = tokens(llm.generate(ids(5), seeded))[0]
    others = [SamplingParams(temperature=1.0, seed=i, max_tokens=5 + i, ignore_eos=True) for i in range(5)]
    batch = tokens(llm.generate([*[ids(4 + i) for i in range(5)], ids(5)], [*others, seeded]))
    assert batch[-1] == alone


def test_stop_strings_cut_stream_and_whole_alike(tiny_llm):
    """Stream text and final text differed after a stop match; parts of the stop string had been sent."""
    llm = tiny_llm()
    plain = llm.generate("the quick brown", greedy(max_tokens=60))[0].outputs[0].text
    stop = plain[len(plain) // 2 : len(plain) // 2 + 3]
    cut = plain[: plain.index(stop)]
    whole = llm.generate("the quick brown", greedy(max_tokens=60, stop=[stop]))[0].outputs[0]
    pieces = list(llm.stream("the quick brown", greedy(max_tokens=60, stop=[stop])))
    assert whole.text == "".join(piece.outputs[0].text for piece in pieces) == cut
    assert whole.finish_reason == pieces[-1].outputs[0].finish_reason == "stop" and whole.stop_reason == stop
    kept = llm.generate("the quick brown", greedy(max_tokens=60, stop=[stop], include_stop_str_in_output=True))
    assert kept[0].outputs[0].text == cut + stop


def test_a_closed_stream_frees_its_blocks(tiny_llm):
    llm = tiny_llm(enable_prefix_caching=False)
    stream = llm.stream(ids(30), greedy(max_tokens=100))
    next(stream)
    stream.close()
    llm.generate(ids(3), greedy())
    assert llm.stats().scheduler.kv_cache_usage == 0.0


def test_one_bad_prompt_of_several_is_named(tiny_llm):
    llm = tiny_llm(max_model_len=64)
    with pytest.raises(RequestError, match="Prompt 1: .*70.*64"):
        llm.generate([ids(3), ids(70)], greedy())
    assert len(tokens(llm.generate(ids(3), greedy()))[0]) == 8
