"""From submit to the last output, with an engine that says what it is told: outputs, stops, aborts, failures."""

import math

import pytest

from modulm import SamplingParams
from modulm.errors import ConfigError, EngineError, RequestError
from modulm.outputs import Logprob
from modulm.sampling_params import RequestOutputKind
from modulm.types import Adapter, TokenLogprobs

DELTA, CUMULATIVE, FINAL = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY


def greedy(**options):
    return SamplingParams(**{"temperature": 0.0, **options})


def run(frontend, engine, ids, params, *, step=1, prompt="the", finish_reason="length", **last):
    """Let the engine bring `ids`, some per step; returns all outputs."""
    frontend.submit(prompt, params, request_id="r")
    request, outputs = engine.submitted[-1], []
    for start in range(0, len(ids), step):
        ended = start + step >= len(ids)
        engine.say(request, ids[start : start + step], finish_reason if ended else None, **(last if ended else {}))
        outputs += frontend.poll()
    return outputs


def text_of(outputs):
    return "".join(output.outputs[0].text for output in outputs)


def test_kinds_of_output(make_frontend, engine, bpe):
    ids = bpe.encode(" quick brown 我 fox", False)
    for kind in (DELTA, CUMULATIVE, FINAL):
        outputs = run(make_frontend(), engine, ids, greedy(output_kind=kind))
        last = outputs[-1]
        assert last.finished and last.request_id == "r" and last.prompt == "the" and last.error is None
        assert last.prompt_token_ids == bpe.encode("the") and last.outputs[0].finish_reason == "length"
        assert not any(output.finished for output in outputs[:-1])
        if kind is DELTA:
            assert text_of(outputs) == bpe.decode(ids)
            assert sum((output.outputs[0].token_ids for output in outputs), []) == ids
        else:
            assert last.outputs[0].text == bpe.decode(ids) and last.outputs[0].token_ids == ids
        if kind is CUMULATIVE:
            for before, after in zip(outputs, outputs[1:], strict=False):
                assert after.outputs[0].text.startswith(before.outputs[0].text)
                assert len(after.outputs[0].token_ids) == len(before.outputs[0].token_ids) + 1
        assert (len(outputs) == 1) is (kind is FINAL)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3, 50])
def test_stop_strings_cut_every_kind_alike(make_frontend, engine, bpe, step, include):
    """The stop string ends inside a token; tokens after that one are dropped however many a step brings."""
    text = " quick brown fox jumps over"
    ids = bpe.encode(text, False)
    stop = "rown f"
    cut = text[: text.index(stop)] + (stop if include else "")
    seen = []
    for kind in (DELTA, CUMULATIVE, FINAL):
        frontend = make_frontend()
        params = greedy(stop=["zzz", stop], include_stop_str_in_output=include, output_kind=kind)
        outputs = run(frontend, engine, ids, params, step=step)
        last = outputs[-1].outputs[0]
        assert (text_of(outputs) if kind is DELTA else last.text) == cut
        assert (last.finish_reason, last.stop_reason, outputs[-1].finished) == ("stop", stop, True)
        seen.append(len(last.token_ids) if kind is not DELTA else sum(len(o.outputs[0].token_ids) for o in outputs))
        assert not frontend.has_work()
    assert len(set(seen)) == 1


def test_the_engine_is_told_of_a_stop_string_and_of_nothing_else(make_frontend, engine, bpe):
    """Aborts were sent on every normal end."""
    frontend = make_frontend()
    for _ in range(1000):
        run(frontend, engine, [9], greedy(), finish_reason="stop", stop_token_id=9)
    assert engine.aborted == []
    run(frontend, engine, bpe.encode(" a dog the the", False), greedy(stop="dog"))
    assert engine.aborted == [engine.submitted[-1].request_id] and engine.reasons == ["stop"]
    run(frontend, engine, bpe.encode("dog", False), greedy(stop="dog"), step=9)
    assert len(engine.aborted) == 1


def test_a_stop_string_completed_by_the_last_token_is_the_reason(make_frontend, engine, bpe):
    output = run(make_frontend(), engine, bpe.encode(" a dog", False), greedy(stop="dog"))[-1].outputs[0]
    assert (output.finish_reason, output.stop_reason, output.text) == ("stop", "dog", " a ")


def test_what_was_held_for_a_stop_string_comes_at_the_end(make_frontend, engine, bpe):
    outputs = run(make_frontend(), engine, bpe.encode(" a do", False), greedy(stop="dog", output_kind=DELTA))
    assert text_of(outputs) == " a do" and outputs[-1].outputs[0].finish_reason == "length"


def test_stop_strings_wait_for_min_tokens(make_frontend, engine, bpe):
    ids = bpe.encode(" dog", False) * 4
    per_dog = len(bpe.encode(" dog", False))
    for step in (1, 3, 99):
        params = greedy(stop="dog", min_tokens=per_dog * 2)
        output = run(make_frontend(), engine, ids, params, step=step)[-1].outputs[0]
        assert output.text == " dog dog " and len(output.token_ids) == per_dog * 3


def test_the_token_that_ends_the_output(make_frontend, engine, bpe):
    """It is among the ids; its text only where asked for; named as the reason when the client listed it."""
    dog = bpe.encode("dog", False)[-1]
    end = {"finish_reason": "stop", "stop_token_id": dog}
    text = bpe.decode([9])
    output = run(make_frontend(), engine, [9, dog], greedy(stop_token_ids=[dog]), **end)[-1].outputs[0]
    assert (output.text, output.token_ids, output.stop_reason) == (text, [9, dog], dog)
    params = greedy(stop_token_ids=[dog], include_stop_str_in_output=True)
    assert run(make_frontend(), engine, [9, dog], params, **end)[-1].outputs[0].text == text + bpe.decode([dog])
    eos = {"finish_reason": "stop", "stop_token_id": 1}
    output = run(make_frontend(), engine, [9, 1], greedy(skip_special_tokens=False), **eos)[-1].outputs[0]
    assert (output.text, output.token_ids, output.stop_reason) == (text, [9, 1], None)


def test_without_detokenizing(make_frontend, engine):
    output = run(make_frontend(), engine, [9, 10], greedy(detokenize=False, logprobs=0))[-1].outputs[0]
    assert (output.text, output.token_ids) == ("", [9, 10])


def test_a_character_cut_at_the_end_is_flushed_once(make_frontend, engine, bpe):
    ids = [9, bpe._inner.token_to_id("æ"), bpe._inner.token_to_id("Ī")]
    outputs = run(make_frontend(), engine, ids, greedy(output_kind=DELTA))
    assert text_of(outputs) == bpe.decode([9]) + "\ufffd"


def test_sentencepiece_text_continues_the_prompt(make_frontend, engine, sp):
    ids = sp.encode("quick fox", False)
    output = run(make_frontend(tokenizer=sp), engine, ids, greedy())[-1]
    assert output.prompt + output.outputs[0].text == "the quick fox"


def position(token_id, logprob, rank, tops):
    ids, values = list(tops), list(tops.values())
    return TokenLogprobs(token_id=token_id, logprob=logprob, rank=rank, top_ids=ids, top_logprobs=values)


def test_logprobs(make_frontend, engine, bpe):
    frontend = make_frontend()
    frontend.submit("the", greedy(logprobs=2, output_kind=DELTA))
    request = engine.submitted[-1]
    engine.say(request, [9], logprobs=[position(9, -3.0, 7, {10: -0.5, 11: -1.0})])
    engine.say(request, [10], "length", logprobs=[position(10, -0.25, 1, {10: -0.25, 12: -math.inf})])
    (output,) = frontend.poll()
    first, second = output.outputs[0].logprobs
    assert list(first) == [9, 10, 11] and list(second) == [10, 12]
    assert first[9] == Logprob(logprob=-3.0, rank=7, decoded_token=bpe.token_text(9))
    assert first[11].rank == 2 and second[10].rank == 1 and second[12].logprob == -math.inf
    assert output.outputs[0].cumulative_logprob == -3.25
    plain = run(make_frontend(), engine, [9], greedy())[-1].outputs[0]
    assert plain.logprobs is None and plain.cumulative_logprob is None


def test_logprobs_end_where_the_tokens_do(make_frontend, engine, bpe):
    frontend = make_frontend()
    frontend.submit("the", greedy(logprobs=0, stop="dog"))
    ids = bpe.encode(" dog the the", False)
    engine.say(engine.submitted[-1], ids, logprobs=[position(i, -1.0, 1, {}) for i in ids])
    (output,) = frontend.poll()
    kept = output.outputs[0]
    assert len(kept.logprobs) == len(kept.token_ids) < len(ids)
    assert kept.cumulative_logprob == -float(len(kept.token_ids))


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE, FINAL])
def test_prompt_logprobs_come_in_chunks_and_start_with_none(make_frontend, engine, kind):
    frontend = make_frontend()
    frontend.submit([9, 10, 11], greedy(prompt_logprobs=1, output_kind=kind))
    request = engine.submitted[-1]
    engine.say(request, prompt_logprobs=[position(10, -1.0, 1, {10: -1.0})])
    assert frontend.poll() == []
    engine.say(request, [9], prompt_logprobs=[position(11, -2.0, 3, {12: -0.5})], num_cached_tokens=2)
    engine.say(request, [9])
    outputs = frontend.poll()
    engine.say(request, [9], "length")
    outputs += frontend.poll()
    told = [output.prompt_logprobs for output in outputs]
    assert told[0][0] is None and [list(entry) for entry in told[0][1:]] == [[10], [11, 12]]
    assert told[1:] == {DELTA: [None], CUMULATIVE: [told[0]], FINAL: []}[kind]
    assert outputs[-1].num_cached_tokens == 2


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE, FINAL])
def test_completions_stay_apart(make_frontend, engine, bpe, kind):
    """n=2: choices overwrote each other; finished when all are."""
    frontend = make_frontend()
    frontend.submit("the", SamplingParams(n=2, output_kind=kind, stop="dog"), request_id="r")
    a, b = engine.submitted
    engine.say(a, bpe.encode(" quick", False))
    engine.say(b, bpe.encode(" brown", False))
    outputs = frontend.poll()
    engine.say(b, bpe.encode(" dog", False))
    outputs += frontend.poll()
    engine.say(b, bpe.encode(" late", False))
    assert frontend.poll() == [] and engine.aborted == [b.request_id]
    engine.say(a, bpe.encode(" fox", False), "length")
    outputs += frontend.poll()
    texts = {0: "", 1: ""}
    for output in outputs:
        for completion in output.outputs:
            texts[completion.index] = (
                completion.text if kind is not DELTA else texts[completion.index] + completion.text
            )
    assert texts == {0: " quick fox", 1: " brown "}
    assert [output.finished for output in outputs] == ([True] if kind is FINAL else [False, False, True])
    assert {output.request_id for output in outputs} == {"r"}


def test_an_aborted_request_is_told_of_once_and_its_id_is_free(make_frontend, engine):
    """The late abort of the first request killed the second of the same id."""
    frontend = make_frontend()
    frontend.submit([9], greedy(output_kind=DELTA), request_id="x")
    first = engine.submitted[-1]
    engine.say(first, [10])
    frontend.poll()
    frontend.abort("x")
    frontend.submit([9], greedy(), request_id="x")
    second = engine.submitted[-1]
    assert engine.aborted == [first.request_id] and second.request_id != first.request_id
    engine.say(first, [10], "abort")
    engine.say(second, [10], "length")
    outputs = frontend.poll()
    assert sorted(output.outputs[0].finish_reason for output in outputs) == ["abort", "length"]
    assert all(output.finished and output.request_id == "x" for output in outputs)
    assert frontend.poll() == [] and not frontend.has_work()
    frontend.abort("x")
    frontend.abort("unknown")
    assert frontend.poll() == [] and engine.aborted == [first.request_id]


def test_an_abort_ends_all_completions_and_gives_what_there_is(make_frontend, engine, bpe):
    frontend = make_frontend()
    frontend.submit([9], SamplingParams(n=2, output_kind=FINAL, stop="dogs"), request_id="x")
    a, b = engine.submitted
    engine.say(a, bpe.encode(" a dog", False))
    engine.say(b, bpe.encode(" fox", False), "length")
    frontend.poll()
    frontend.abort("x")
    (output,) = frontend.poll()
    assert [(c.text, c.finish_reason) for c in output.outputs] == [(" a dog", "abort"), (" fox", "length")]
    assert engine.aborted == [a.request_id]


def test_an_error_ends_one_completion(make_frontend, engine):
    frontend = make_frontend()
    frontend.submit([9], SamplingParams(n=2, output_kind=FINAL), request_id="x")
    a, b = engine.submitted
    engine.say(a, [], "error", error="NaN logits")
    assert frontend.poll() == []
    engine.say(b, [10], "length")
    (output,) = frontend.poll()
    assert [c.finish_reason for c in output.outputs] == ["error", "length"]
    assert output.finished and output.error == "NaN logits" and engine.aborted == []


def test_every_request_gets_a_reply_when_the_engine_is_gone(make_frontend, engine):
    frontend = make_frontend()
    labels = {frontend.submit([9], greedy()) for _ in range(3)}
    assert len(labels) == 3
    engine.failure = EngineError("the process died")
    outputs = frontend.poll()
    assert {output.request_id for output in outputs} == labels
    assert all(o.finished and o.error == "the process died" and o.outputs[0].finish_reason == "error" for o in outputs)
    with pytest.raises(EngineError):
        frontend.poll()


def test_nothing_stays_behind_when_submitting_fails(make_frontend, engine, monkeypatch):
    frontend = make_frontend()
    taken = []

    def submit(request):
        if taken:
            raise EngineError("full")
        taken.append(request.request_id)

    monkeypatch.setattr(engine, "submit", submit)
    with pytest.raises(EngineError):
        frontend.submit([9], SamplingParams(n=2))
    assert not frontend.has_work() and taken[0] in engine.aborted


def test_chat(make_frontend, engine, bpe):
    frontend = make_frontend(scheduling_policy="priority")
    prompt = frontend.render([{"role": "user", "content": "the dog"}])
    label = frontend.submit(prompt, greedy(), request_id="c", priority=2)
    text = "<|im_start|>user\nthe dog<|im_end|>\n"
    assert label == "c" and engine.submitted[-1].prompt_token_ids == bpe.encode(text, False)
    assert engine.submitted[-1].prompt_token_ids[0] == 2 and engine.submitted[-1].priority == 2
    assert prompt["prompt"] == text
    with pytest.raises(RequestError, match="chat_template=FILE"):
        make_frontend(chat_template=None).render([{"role": "user", "content": "x"}])


def test_a_chat_of_a_tokenizer_with_bos_gets_no_second_one(make_frontend, engine, sp):
    frontend = make_frontend(tokenizer=sp, chat_template="{{ bos_token }}{{ messages[0].content }}")
    frontend.submit(frontend.render([{"role": "user", "content": "fox"}]), greedy())
    assert engine.submitted[-1].prompt_token_ids.count(1) == 1


def test_a_template_of_the_user_is_checked_at_the_start(make_frontend):
    with pytest.raises(ConfigError, match="chat_template='{% for'.*not valid Jinja"):
        make_frontend(chat_template="{% for")
    assert make_frontend(chat_template=None)
    with pytest.raises(ConfigError, match="missing.jinja"):
        make_frontend(chat_template="missing.jinja")


def test_adapters_and_the_rest_pass_through(make_frontend, engine):
    frontend = make_frontend()
    adapter = Adapter(name="a", key="k", path="p")
    frontend.submit([9], greedy(), adapter=adapter)
    engine.say(engine.submitted[-1], [9], "length")
    (output,) = frontend.poll()
    assert engine.submitted[-1].adapter == output.lora_request == output.outputs[0].lora_request == adapter
    assert frontend.stats() == "stats"
    frontend.shutdown()
    assert engine.submitted[-1] == "shutdown"


def test_no_torch_and_no_transformers_and_no_jinja_before_a_conversation():
    import subprocess
    import sys

    code = "import sys, modulm.frontend.frontend; print({'jinja2', 'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_trace_headers_go_along_with_the_clients_id(make_frontend, engine):
    frontend = make_frontend()
    frontend.submit("a", greedy(n=2, temperature=1.0), request_id="mine", trace_headers={"traceparent": "00-1-2-01"})
    frontend.submit("a", greedy(), request_id="plain")
    told = [request.trace_headers for request in engine.submitted]
    assert told == [{"traceparent": "00-1-2-01", "x-request-id": "mine"}] * 2 + [None]
