"""Parsers at work in the front end, with two plain formats: `<think>..</think>` and `<call>name</call>`."""

from dataclasses import replace

import pytest

from modulm.config import EngineConfig
from modulm.errors import Broken, ConfigError, NotInstalled, UnknownName, Unsupported
from modulm.frontend.parse import Parse, Parsers, ResponseReader, check_parsers
from modulm.interfaces.parsers import (
    CallArguments,
    CallStart,
    Content,
    Reasoning,
    ReasoningParser,
    ResponseContext,
    ToolParser,
    collect,
)
from modulm.interfaces.reading import TextParser
from modulm.interfaces.support import Accepted
from modulm.plugins import known
from modulm.plugins.registry import registry
from modulm.sampling_params import SamplingParams

CALLS = Parse(tools=[{"name": "f"}])


class Bare(TextParser, ToolParser):
    def read(self, text):
        index = 0
        while (yield from text.copy(Content, "<call>")):
            yield CallStart(index, (yield from text.take_until("</call>")))
            yield CallArguments(index, "{}")
            index += 1

    @classmethod
    def matches(cls, tokenizer, chat_template):
        return Accepted() if "<call>" in chat_template else super().matches(tokenizer, chat_template)


class Think(TextParser, ReasoningParser):
    special_tokens = ("<|im_start|>",)

    def read(self, text):
        if (yield from text.accept("<think>", "<|im_start|>")):
            yield from text.copy(Reasoning, "</think>")


def read(text, *, tool=Bare, reasoning=Think, cut=1, parallel=True, reason="stop"):
    context = ResponseContext(tools=CALLS.tools)
    reader = ResponseReader(reasoning and reasoning(context), tool and tool(context), frozenset(), parallel=parallel)
    for start in range(0, len(text), cut):
        reader.answer(reader.think(text[start : start + cut]))
    reader.answer(reader.end_thinking(reason))
    reader.finish(reason)
    return collect(reader.events)


def calls(parsed):
    return [call.name for call in parsed.calls]


@pytest.mark.parametrize("cut", [1, 3, 1000])
def test_thinking_then_answer_then_calls(cut):
    parsed = read("<think>hm <call>no</call></think>so <call>f</call> and <call>g</call>", cut=cut)
    assert (parsed.reasoning, parsed.content, calls(parsed)) == ("hm <call>no</call>", "so  and ", ["f", "g"])
    assert all(call.id.startswith("call_") and len(call.id) == 29 for call in parsed.calls)
    assert parsed.calls[0].id != parsed.calls[1].id


@pytest.mark.parametrize("cut", [1, 1000])
@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\n<call>f</call>\n", ""),
        ("\n<call>f</call> \n <call>g</call>", ""),
        ("so \n<call>f</call>\n\nthen", "so \n\n\nthen"),
        (" \n", " \n"),
        (" a \n", " a \n"),
    ],
)
def test_white_space_alone_around_calls_is_no_content(text, content, cut):
    """A41."""
    assert read(text, cut=cut).content == content


def test_only_the_first_call_is_told_where_calls_are_not_parallel():
    parsed = read("<call>f</call><call>g</call> x", parallel=False)
    assert (calls(parsed), parsed.calls[0].arguments, parsed.content) == (["f"], "{}", " x")


def test_without_a_tool_parser_the_answer_is_content_as_it_is():
    assert read("<think>a</think>\n\n<call>f</call>", tool=None).content == "\n\n<call>f</call>"
    assert read(" \n<think>", reasoning=None, tool=None).content == " \n<think>"


def wrong(answer):
    class Wrong(Bare):
        def push(self, text, token_ids=()):
            return answer() if "!" in text else super().push(text, token_ids)

    return Wrong


def leave():
    raise SystemExit(3)


@pytest.mark.parametrize(
    "answer",
    [
        *(lambda: 1 / 0, leave, lambda: None, lambda: ["text"], lambda: [CallStart(7, "f")]),
        *(lambda: [CallArguments(1, "{}")], lambda: [Content(None)], lambda: [Reasoning("x")]),
    ],
)
def test_a_parser_that_fails_reads_no_more_and_the_rest_is_content(answer, caplog):
    parsed = read("a <call>f</call> b! <call>g</call>", tool=wrong(answer))
    assert (calls(parsed), parsed.content) == (["f"], "a  b! <call>g</call>")
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "Wrong failed; what is left of this response is passed on unread" in record.getMessage()


def test_white_space_before_a_failure_stays_before_it(caplog):
    assert read(" \n! x", tool=wrong(leave)).content == " \n! x"


def test_a_reasoning_parser_that_fails_leaves_the_rest_to_the_answer(caplog):
    class Sad(Think):
        def push(self, text, token_ids=()):
            if "!" in text:
                raise ValueError("no")
            return super().push(text, token_ids)

    parsed = read("<think>a!b</think><call>f</call>", reasoning=Sad)
    assert (parsed.reasoning, parsed.content, calls(parsed)) == ("a", "!b</think>", ["f"])


@pytest.fixture
def parsers():
    registry("modulm.tool_parsers").register("bare", Bare)
    registry("modulm.reasoning_parsers").register("think", Think)
    yield
    for family in ("modulm.tool_parsers", "modulm.reasoning_parsers"):
        for name in list(registry(family).registrations()):
            registry(family).restore(name, None)


def say(frontend, engine, text, parse, *, reason="stop", at_once=1, **params):
    """Submit, let the engine say `text`, and return the last output."""
    frontend.submit("a", SamplingParams(max_tokens=None, **params), parse=parse)
    request = engine.submitted[-1]
    ids = frontend.tokenizer.encode(text, add_special_tokens=False)
    output = None
    for start in range(0, len(ids), at_once):
        engine.say(request, ids[start : start + at_once])
        output = (frontend.poll() or [output])[-1]
    if not output.finished:
        engine.say(request, finish_reason=reason)
        output = frontend.poll()[-1]
    assert output.finished
    return output.outputs[0]


def test_outputs_have_events_where_they_are_wanted(parsers, make_frontend, engine):
    frontend = make_frontend(tool_call_parser="bare", reasoning_parser="think", max_model_len=400)
    text = "<think>a</think>b<call>f</call>"
    told = say(frontend, engine, text, CALLS)
    parsed = collect(told.events)
    assert (told.text, parsed.content, parsed.reasoning, calls(parsed)) == ("b<call>f</call>", "b", "a", ["f"])
    parsed = collect(say(frontend, engine, text, Parse()).events)
    assert (parsed.content, parsed.reasoning, parsed.calls) == ("b<call>f</call>", "a", [])
    told = say(frontend, engine, text, None)
    assert (told.text, told.events) == (text, None)


def test_a_server_without_parsers_makes_no_events(make_frontend, engine):
    assert say(make_frontend(max_model_len=400), engine, "<call>f</call>", CALLS).events is None


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_stop_strings_end_the_answer_and_not_the_thinking(parsers, make_frontend, engine, at_once):
    """B7, B8: the thinking may hold the stop string, and a tag of it may begin like one."""
    frontend = make_frontend(tool_call_parser="bare", reasoning_parser="think", max_model_len=400)
    text = "<think>one </s two</think>b <call>f</call> x</s y"
    told = say(frontend, engine, text, CALLS, stop=["</s"], at_once=at_once)
    parsed = collect(told.events)
    assert (parsed.reasoning, parsed.content, calls(parsed)) == ("one </s two", "b  x", ["f"])
    assert (told.finish_reason, told.stop_reason) == ("stop", "</s")


def test_a_call_in_the_models_own_format_ends_no_thinking_before_a_forced_call(parsers, make_frontend, engine):
    class CallsAmid(Think):
        def read(self, text):
            yield from text.copy(Reasoning, "</think>", *(["<call>"] if self.context.tools else []))

    registry("modulm.reasoning_parsers").register("amid", CallsAmid)
    frontend = make_frontend(reasoning_parser="amid", tool_call_parser="bare", max_model_len=400)
    text = 'a <call>?</think>[{"name": "f", "parameters": {}}]'
    parsed = collect(say(frontend, engine, text, replace(CALLS, forced="required")).events)
    assert (parsed.reasoning, calls(parsed), parsed.content) == ("a <call>?", ["f"], "")
    assert collect(say(frontend, engine, text, CALLS).events).reasoning == "a "


def test_a_text_that_ends_within_a_mark_is_passed_on(parsers, make_frontend, engine):
    frontend = make_frontend(tool_call_parser="bare", reasoning_parser="think", max_model_len=400)
    assert collect(say(frontend, engine, "<thi", CALLS, reason="length").events).content == "<thi"
    assert collect(say(frontend, engine, "b<ca", CALLS, stop=["<cat"], reason="length").events).content == "b<ca"
    assert collect(say(frontend, engine, "<think>a</th", CALLS, reason="length").events).reasoning == "a</th"


def test_special_tokens_of_the_format_stay_in_the_text(parsers, make_frontend, engine):
    frontend = make_frontend(reasoning_parser="think", max_model_len=400)
    parsed = collect(say(frontend, engine, "<|im_start|>a<|im_end|></think>b<s>", Parse()).events)
    assert (parsed.reasoning, parsed.content) == ("a", "b")
    told = say(frontend, engine, "<|im_start|>a<|im_end|>", None)
    assert told.text == "a"


def test_a_format_may_change_the_parameters(parsers, make_frontend, engine):
    class Longer(Bare):
        @classmethod
        def adjust(cls, params, context):
            return params.clone(stop=[*params.stop, context.tools[0]["name"]])

    registry("modulm.tool_parsers").register("longer", Longer)
    frontend = make_frontend(tool_call_parser="longer", max_model_len=400)
    told = say(frontend, engine, "abcfoo", CALLS)
    assert (told.text, told.stop_reason) == ("abc", "f")


def test_what_is_not_there_stops_the_start(monkeypatch):
    monkeypatch.setitem(known.KNOWN, "modulm.tool_parsers", {"odd": "modulm-parsers-odd"})
    with pytest.raises(NotInstalled, match="Tool parser 'odd' is not installed. It comes with modulm-parsers-odd: pip"):
        check_parsers(EngineConfig(model="m", tool_call_parser="odd"))
    with pytest.raises(UnknownName, match="Reasoning parser 'zzz' is unknown"):
        check_parsers(EngineConfig(model="m", reasoning_parser="zzz"))
    check_parsers(EngineConfig(model="m", tool_call_parser="auto"))


def test_automatic_choice_goes_by_the_template(parsers, bpe):
    config = EngineConfig(model="m", tool_call_parser="auto")
    found = Parsers(config, bpe, lambda: {"default": "x", "tool_use": "say <call>"})
    assert found.tool is Bare and found.reasoning is None
    assert [choice.name for choice in found.choices] == ["bare"]
    with pytest.raises(Unsupported, match="No tool parser can serve here. Asked: .*bare: it does not say which"):
        Parsers(config, bpe, lambda: "say nothing")
    with pytest.raises(ConfigError, match="Tool parser 'auto' is refused: the model has no chat template"):
        Parsers(config, bpe, lambda: None)


def test_a_parser_that_cannot_be_built_stops_the_start(parsers, bpe):
    class Unbuilt(Bare):
        def __init__(self, context):
            raise KeyError("no such token")

    registry("modulm.tool_parsers").register("unbuilt", Unbuilt)
    with pytest.raises(Broken, match="Tool parser 'unbuilt' is installed but broken: .* raised KeyError"):
        Parsers(EngineConfig(model="m", tool_call_parser="unbuilt"), bpe, lambda: None)
