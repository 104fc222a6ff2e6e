"""Tools and thinking in /v1/chat/completions: what is asked, what is refused, and what OpenAI's client is told.

The worker recites what the test gives it; the format is a plain one of this file's own.
"""

import json

import openai
import pytest

from modulm.interfaces.parsers import CallArguments, CallStart, Content, Reasoning, ReasoningParser, ToolParser
from modulm.interfaces.reading import TextParser
from modulm.plugins.registry import registry

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("now", "add")]
MESSAGES = [{"role": "user", "content": "hi"}]
TWO = '<think>Two, then.</think>Well: <call now {}/> <call add {"a": 1, "b": "ä 😊"}/>\n'


class Marked(TextParser, ToolParser):
    """`<call NAME ARGUMENTS/>`"""

    def read(self, text):
        index = 0
        while (yield from text.copy(Content, "<call ")):
            yield CallStart(index, (yield from text.take_until(" ")))
            yield from text.copy(lambda piece, index=index: CallArguments(index, piece), "/>")
            index += 1


class Think(TextParser, ReasoningParser):
    def read(self, text):
        names = self.context.template_kwargs
        closed = names.get("enable_thinking") is False or names.get("reasoning_effort") == "none"
        if not closed and (yield from text.accept("<think>")):
            yield from text.copy(Reasoning, "</think>")


@pytest.fixture(scope="module")
def calling(make_server):
    names = {"modulm.tool_parsers": ("marked", Marked), "modulm.reasoning_parsers": ("think", Think)}
    for family, (name, parser) in names.items():
        registry(family).register(name, parser)
    yield make_server(options={"enable_auto_tool_choice": True}, tool_call_parser="marked", reasoning_parser="think")
    for family, (name, _) in names.items():
        registry(family).restore(name, None)


@pytest.fixture
def say(calling):
    """Make the worker recite a text and then end."""

    def make(text):
        end = calling.tokenizer.eos_token_id
        calling.worker.script = [*calling.tokenizer.encode(text, add_special_tokens=False), end]
        return calling

    return make


def told(answer):
    """Return content, reasoning, calls as (name, arguments), finish reason, of a whole answer's choices."""
    found = []
    for choice in answer["choices"]:
        message = choice["message"]
        functions = [call["function"] for call in message.get("tool_calls", [])]
        calls = [(function["name"], function["arguments"]) for function in functions]
        found.append((message["content"], message.get("reasoning"), calls, choice["finish_reason"]))
    return found


def put_together(chunks):
    """The same for a stream, by OpenAI's rules; checks that each call is begun once and then only goes on."""
    found = {}
    for choice in [choice for chunk in chunks for choice in chunk["choices"]]:
        content, reasoning, calls, _ = found.setdefault(choice["index"], ["", "", {}, None])
        delta = choice["delta"]
        found[choice["index"]][0] = content + delta.get("content", "")
        found[choice["index"]][1] = reasoning + delta.get("reasoning", "")
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for call in delta.get("tool_calls", []):
            if call["index"] not in calls:
                assert call["index"] == len(calls)
                assert (call["type"], bool(call["id"]), bool(call["function"]["name"])) == ("function", True, True)
                calls[call["index"]] = [call["function"]["name"], ""]
            else:
                assert call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"}
            calls[call["index"]][1] += call["function"]["arguments"]
        found[choice["index"]][3] = choice["finish_reason"] or found[choice["index"]][3]
    return [
        (content or None, reasoning or None, [tuple(call) for call in calls.values()], reason)
        for content, reasoning, calls, reason in (found[index] for index in sorted(found))
    ]


EXPECTED = ("Well: ", "Two, then.", [("now", "{}"), ("add", '{"a": 1, "b": "ä 😊"}')], "tool_calls")


@pytest.mark.parametrize("n", [1, 3])
def test_calls_thinking_and_answer_are_told_apart(say, n):
    server = say(TWO)
    answer = server.chat(tools=TOOLS, n=n, temperature=1)
    assert told(answer) == [EXPECTED] * n
    for choice in answer["choices"]:
        message = choice["message"]
        assert message["reasoning_content"] == message["reasoning"]
        assert [call["type"] for call in message["tool_calls"]] == ["function"] * 2
    ids = [call["id"] for choice in answer["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2 * n
    assert put_together(server.chat(tools=TOOLS, stream=True, n=n, temperature=1)) == [EXPECTED] * n


def test_arguments_come_as_they_are_written(say):
    server = say('<call add {"a": 1, "b": "a long text, so that there are many tokens"}/>')
    chunks = server.chat(tools=TOOLS, stream=True)
    pieces = [
        call["function"]["arguments"] for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert len(pieces) > 3 and json.loads("".join(pieces))["a"] == 1


def test_the_official_client_puts_the_stream_together(say):
    server = say(TWO)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        whole = client.chat.completions.create(model="reciter", messages=MESSAGES, tools=TOOLS).choices[0]
        assert whole.finish_reason == "tool_calls" and whole.message.content == "Well: "
        with client.chat.completions.stream(model="reciter", messages=MESSAGES, tools=TOOLS) as stream:
            events = list(stream)
            final = stream.get_final_completion().choices[0]
    as_written = [(call.function.name, call.function.arguments) for call in final.message.tool_calls]
    assert as_written == EXPECTED[2] == [(c.function.name, c.function.arguments) for c in whole.message.tool_calls]
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, event.arguments) for event in done] == EXPECTED[2]
    assert final.finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_short_says_so(say, stream):
    """A38."""
    answer = say('<call add {"a": 1}/>').chat(tools=TOOLS, stream=stream, max_tokens=15)
    (choice,) = put_together(answer) if stream else told(answer)
    assert choice[2][0][0] == "add" and choice[2][0][1].startswith("{") and choice[3] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_of_every_token(say, stream):
    server = say(TWO)
    answer = server.chat(tools=TOOLS, logprobs=True, stream=stream)
    choices = [choice for chunk in (answer if stream else [answer]) for choice in chunk["choices"]]
    tokens = [entry["token"] for choice in choices for entry in (choice["logprobs"] or {}).get("content", [])]
    assert len(tokens) == len(server.worker.script)


def test_a_stop_string_ends_the_answer(say):
    server = say("<think>Well: then</think>Well: <call now {}/>")
    assert told(server.chat(tools=TOOLS, stop=["<call"])) == [("Well: ", "Well: then", [], "stop")]
    assert told(server.chat(tools=TOOLS, stop=["l: "])) == [("Wel", "Well: then", [], "stop")]


def test_wishes_are_heard(say):
    server = say(TWO)
    assert told(server.chat(tools=TOOLS, parallel_tool_calls=False))[0][2] == EXPECTED[2][:1]
    plain = server.chat(tools=TOOLS, include_reasoning=False)
    assert told(plain) == [(EXPECTED[0], None, *EXPECTED[2:])]
    assert put_together(server.chat(tools=TOOLS, include_reasoning=False, stream=True)) == told(plain)
    text = TWO.partition("</think>")[2]
    assert told(server.chat(tools=TOOLS, tool_choice="none")) == [(text, "Two, then.", [], "stop")]
    assert told(server.chat()) == [(text, "Two, then.", [], "stop")]
    assert told(server.chat(chat_template_kwargs={"enable_thinking": False})) == [(TWO, None, [], "stop")]
    assert told(server.chat(reasoning_effort="none")) == [(TWO, None, [], "stop")]
    only = say("<think>hm</think>").chat()["choices"][0]["message"]
    assert (only["content"], only["reasoning"]) == (None, "hm")


FUNCTION = {"name": "f"}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"tool_choice": {"type": "function", "function": FUNCTION}}, "tool_choice", "there are 'now', 'add'"),
        ({"tool_choice": {"name": "now"}}, "tool_choice", "it must be {'type': 'function', 'function'"),
        ({"tool_choice": "maybe"}, "tool_choice", "must be 'none', 'auto'"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "no tools to choose from"),
        ({"tools": [*TOOLS, {"type": "magic"}]}, "tools", "Tool 2 is refused"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools", "has no name"),
        ({"tools": [{"type": "function", "function": FUNCTION | {"parameters": "x"}}]}, "tools", "function 'f'"),
        ({"tools": [{"type": "function", "function": FUNCTION | {"strict": True}}]}, "tools", "it is strict, and"),
        ({"tools": [{"type": "function", "function": FUNCTION | {"strict": 1}}]}, "tools", "strict of function 'f'"),
        ({"functions": [FUNCTION]}, "functions", "use tools and tool_choice"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(calling, body, param, words):
    status, _, answer = calling.ask("/v1/chat/completions", {"messages": MESSAGES, "tools": TOOLS, **body})
    assert (status, answer["error"]["param"]) == (400, param)
    assert words in answer["error"]["message"]


def test_a_tool_without_arguments_spoils_nothing(say):
    """A42."""
    empty = {"type": "function", "function": {"name": "none", "parameters": {"type": "object", "properties": {}}}}
    bare = {"type": "function", "function": {"name": "bare"}}
    assert told(say(TWO).chat(tools=[*TOOLS, empty, bare])) == [EXPECTED]


def test_tools_are_shown_to_the_model_unless_the_server_hides_them(make_server):
    """The template writes out their names."""
    template = "{% for tool in tools or [] %}<{{ tool.function.name }}>{% endfor %}{{ messages[0].content }}"
    for hides, shown in ((False, "<now><add>hi"), (True, "hi")):
        server = make_server(
            options={"exclude_tools_when_tool_choice_none": hides}, chat_template=template, max_num_seqs=2
        )
        said = server.chat(tools=TOOLS, tool_choice="none", max_tokens=1, return_token_ids=True)
        assert server.tokenizer.decode(said["prompt_token_ids"]) == shown
