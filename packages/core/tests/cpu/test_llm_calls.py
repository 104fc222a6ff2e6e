"""`LLM` called in every order and with everything a caller may hand over; transformers says what the tokens must be."""

import gc
import os
import random
import signal
import threading

import numpy as np
import pytest
import torch

from modulm import SamplingParams
from modulm.errors import EngineError, RequestError
from modulm.types import Adapter

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
FEW = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)


@pytest.fixture(scope="module")
def expected(tiny_folder):
    """What transformers continues a prompt of ids with, greedily."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)

    def tokens(prompt, count):
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(prompt) :]

    return tokens


def collect(stream):
    return [token for output in stream for token in output.outputs[0].token_ids]


def test_streams_side_by_side(tiny_llm, expected):
    """Each was waiting for outputs that the other had taken and thrown away: neither ever ended."""
    llm = tiny_llm()
    prompts = [[9, 10, 11], [40, 41], [70]]
    streams = [llm.stream(prompt, GREEDY) for prompt in prompts]
    got = [[] for _ in prompts]
    for _ in range(12):
        for tokens, stream in zip(got, streams, strict=True):
            tokens += next(stream).outputs[0].token_ids
    assert got == [expected(prompt, 12) for prompt in prompts]
    assert [list(stream) for stream in streams] == [[], [], []]


def test_generate_while_a_stream_is_open(tiny_llm, expected):
    llm = tiny_llm()
    stream = llm.stream([9, 10, 11], GREEDY)
    first = next(stream).outputs[0].token_ids
    outputs = llm.generate([[40, 41], [70]], GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == [expected([40, 41], 12), expected([70], 12)]
    assert first + collect(stream) == expected([9, 10, 11], 12)


def test_threads_share_an_engine(tiny_llm, expected):
    llm = tiny_llm()
    got = {}

    def ask(token):
        got[token] = collect(llm.stream([token], GREEDY)), llm.generate([token], FEW)[0].outputs[0].token_ids

    threads = [threading.Thread(target=ask, args=(token,), daemon=True) for token in range(20, 26)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {token: (expected([token], 12), expected([token], 3)) for token in range(20, 26)}


def idle(llm):
    """Let the engine take in what it was told; whether nothing is left in it."""
    llm.generate([99], FEW)
    stats = llm.stats().scheduler
    return (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage) == (0, 0, 0.0)


def test_a_broken_off_call_leaves_nothing_behind(tiny_llm, expected, monkeypatch):
    """After Ctrl-C the requests of the call went on running under those of the next."""
    llm = tiny_llm(max_num_seqs=4)
    worker = llm._launched.worker
    execute, steps = worker.execute, iter([1, 2, None])

    def interrupted(plan):
        if next(steps) is None:
            raise KeyboardInterrupt
        return execute(plan)

    monkeypatch.setattr(worker, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[token] for token in range(20, 40)], GREEDY)
    monkeypatch.undo()
    (again,) = llm.generate([[20, 21]], GREEDY)
    assert again.outputs[0].token_ids == expected([20, 21], 12)
    assert llm.stats().scheduler.num_running_reqs == 0 and idle(llm)


def test_streams_that_nobody_finishes(tiny_llm):
    llm = tiny_llm()
    closed = llm.stream([9], GREEDY)
    next(closed)
    closed.close()
    dropped = llm.stream([10], GREEDY)
    next(dropped)
    del dropped
    gc.collect()

    def fail():
        for _ in llm.stream([11], GREEDY):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert idle(llm)


@pytest.mark.parametrize(
    "prompts",
    [
        ([token, 5] for token in (20, 30)),
        np.array([[20, 5], [30, 5]]),
        [np.array([20, 5]), torch.tensor([30, 5])],
        ({"prompt_token_ids": (np.int64(token), 5)} for token in (20, 30)),
    ],
    ids=["generator", "2-d array", "rows", "numpy ids"],
)
def test_prompts_in_any_container(tiny_llm, expected, prompts):
    """A generator lost its first prompt; arrays were an error about truth values."""
    outputs = tiny_llm().generate(prompts, FEW)
    assert [output.prompt_token_ids for output in outputs] == [[20, 5], [30, 5]]
    assert [output.outputs[0].token_ids for output in outputs] == [expected([20, 5], 3), expected([30, 5], 3)]


@pytest.mark.parametrize("prompt", [[20, 5], (20, 5), np.array([20, 5]), (i for i in (20, 5)), range(20, 22)])
def test_one_prompt_of_ids(tiny_llm, expected, prompt):
    (output,) = tiny_llm().generate(prompt, FEW)
    assert output.outputs[0].token_ids == expected(output.prompt_token_ids, 3)


@pytest.mark.parametrize(
    "prompts", [None, 5, 5.5, object(), [None], ["a", None], [1, "a"], [True, False], b"abc", [b"a"], [[[1]]], [[1.0]]]
)
def test_what_is_no_prompt_is_refused(tiny_llm, prompts):
    llm = tiny_llm()
    with pytest.raises(RequestError, match="Send .*list.* of token ids"):
        llm.generate(prompts, FEW)
    assert idle(llm)


@pytest.mark.parametrize("params", [[], {}, "x", 5, [FEW, FEW], [None], [FEW.clone, FEW], iter([FEW])])
def test_what_is_no_sampling_params_is_refused(tiny_llm, params):
    """An empty list was taken for the defaults; the others were an AttributeError with the request left behind."""
    llm = tiny_llm()
    with pytest.raises(RequestError, match="sampling_params"):
        llm.generate("a", params)
    if not isinstance(params, list):
        with pytest.raises(RequestError, match="sampling_params"):
            list(llm.stream("a", params))
    assert idle(llm)


@pytest.mark.parametrize("messages", [None, {"role": "user", "content": "x"}, "hi", 5, [None], [[], "x"]])
def test_what_is_no_conversation_is_refused(tiny_llm, messages):
    with pytest.raises(RequestError, match=r"messages|Message 0"):
        tiny_llm().chat(messages, FEW)


def test_conversations_in_any_container(tiny_llm):
    llm = tiny_llm()
    turn = {"role": "user", "content": "the"}
    one = llm.chat([turn], FEW)
    assert [o.prompt for o in llm.chat(iter([turn]), FEW)] == [one[0].prompt] == ["<|user|>the\n<|assistant|>"]
    assert [o.prompt for o in llm.chat(([turn], (turn, turn)), FEW)][0] == one[0].prompt
    assert llm.chat([], FEW) == []


def test_an_adapter_is_refused(tiny_llm):
    """It was accepted, and the base model answered."""
    with pytest.raises(RequestError, match="lora_request=.*no adapters"):
        tiny_llm().generate("a", FEW, lora_request=Adapter(name="x", key="y", path="z"))


def test_after_the_end(tiny_llm):
    llm = tiny_llm()
    stream = llm.stream([9], GREEDY)
    next(stream)
    llm.shutdown()
    llm.shutdown()
    assert [output.outputs[0].finish_reason for output in stream] == ["abort"]
    for call in (
        lambda: llm.generate("a"),
        lambda: next(llm.stream("a")),
        lambda: llm.chat([{"role": "user", "content": "x"}]),
    ):
        with pytest.raises(EngineError, match="has been shut down.*Make a new LLM"):
            call()


def test_ctrl_c_at_any_moment(tiny_llm, expected):
    """In the middle of a step's accounts it left an engine that could never run again."""
    llm = tiny_llm(block_size=4, num_kv_blocks=120, max_num_seqs=6, max_model_len=64)
    prompts = [[token, token + 1] for token in range(20, 30)]
    want = [expected(prompt, 12) for prompt in prompts]
    rng = random.Random(0)
    num_interrupted = 0
    for _ in range(40):
        timer = threading.Timer(rng.random() * 0.02, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            llm.generate(prompts * 3, GREEDY)
            timer.join()
        except KeyboardInterrupt:
            num_interrupted += 1
        timer.join()
        at = rng.randrange(len(prompts))
        assert llm.generate([prompts[at]], GREEDY)[0].outputs[0].token_ids == want[at]
    assert num_interrupted > 20 and idle(llm)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": "x"}, "tools='x' is refused: it must be a list of objects"),
        ({"documents": 5}, "documents=5 is refused: it must be a list of objects"),
        ({"chat_template": 5}, "chat_template=5 is refused"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs=5 is refused: it must be an object"),
        ({"add_generation_prompt": "no"}, "is 'no' and refused: each must be true or false"),
    ],
)
def test_template_options_of_the_wrong_kind_are_refused(tiny_llm, options, message):
    with pytest.raises(RequestError, match=message):
        tiny_llm().chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=1), **options)
