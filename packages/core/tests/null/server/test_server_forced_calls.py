"""`tool_choice` "required" and a function's name: the form that is asked of the backend, and what the client is told.

The worker recites, and the backend lets everything pass: whether forms are kept is other tests' subject.
"""

import json

import openai
import pytest

from modulm.engine.grammar import FAMILY, Grammars
from modulm.interfaces.structured import CompiledGrammar, Grammar, StructuredOutputBackend, Vocabulary
from modulm.interfaces.support import Accepted, Rejected
from modulm.plugins.registry import registry

MESSAGES = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("now", "add")]
UNIQUE = {"type": "object", "properties": {"c": {"type": "array", "uniqueItems": True}}}
NAMED = {"type": "function", "function": {"name": "add"}}
ARGUMENTS = '{"a": 1, "b": "ä 😊 ]}"}'
TWO = f'[{{"name": "now", "parameters": {{}}}}, {{"name": "add", "parameters": {ARGUMENTS}}}]'


class Lenient(StructuredOutputBackend):
    name, asked = "lenient", []

    @classmethod
    def supports(cls, params):
        return Rejected("uniqueItems is not enforced") if "uniqueItems" in params.text else Accepted()

    def __init__(self, vocabulary): ...

    def compile(self, params):
        self.asked.append(params)
        return Anything()


class Anything(CompiledGrammar, Grammar):
    is_terminated = False

    def start(self):
        return self

    def fill(self, mask):
        mask.fill(0xFFFFFFFF)

    def accept(self, token_ids):
        return True

    def rollback(self, num_tokens): ...


@pytest.fixture(scope="module")
def forcing(make_server):
    registry(FAMILY).register("lenient", Lenient)
    vocabulary = Vocabulary(tokens=[b"a"] * 300, size=300, special_ids=[], eos_token_ids=[1], encode=list)
    yield make_server(
        grammars=Grammars(lambda: vocabulary, backend="lenient"), structured_output_backend="lenient", options={}
    )
    registry(FAMILY).restore("lenient", None)


@pytest.fixture
def say(forcing):
    def make(text):
        end = forcing.tokenizer.eos_token_id
        forcing.worker.script = [*forcing.tokenizer.encode(text, add_special_tokens=False), end]
        Lenient.asked.clear()
        forcing.engine._grammars._kept.clear()
        return forcing

    return make


def functions(message):
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


@pytest.mark.parametrize(
    ("choice", "text", "calls", "reason"),
    [
        ("required", TWO, [("now", "{}"), ("add", ARGUMENTS)], "tool_calls"),
        (NAMED, ARGUMENTS, [("add", ARGUMENTS)], "stop"),  # OpenAI's rule
    ],
    ids=["required", "named"],
)
@pytest.mark.parametrize("n", [1, 2])
def test_the_official_client_gets_the_calls(say, choice, text, calls, reason, n):
    """A37: streamed, each argument comes once."""
    server = say(text)
    asked = {"model": "reciter", "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "n": n, "temperature": 1}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        whole = client.chat.completions.create(**asked).choices
        with client.chat.completions.stream(**asked) as stream:
            events = list(stream)
            streamed = stream.get_final_completion().choices
    assert len(whole) == len(streamed) == n
    for choice_ in (*whole, *streamed):
        assert (functions(choice_.message), choice_.finish_reason) == (calls, reason)
        assert not choice_.message.content
    ids = [call.id for choice_ in whole for call in choice_.message.tool_calls]
    assert len(set(ids)) == n * len(calls)
    assert sum(event.type == "tool_calls.function.arguments.delta" for event in events) >= n


def test_the_form_is_the_tools(say):
    say(TWO).chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    say(ARGUMENTS).chat(tools=TOOLS, tool_choice=NAMED)
    assert json.loads(Lenient.asked[-1].json) == PARAMETERS
    say(TWO).chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    schema = json.loads(Lenient.asked[-1].json)
    assert schema["maxItems"] == 1
    assert [each["properties"]["name"]["const"] for each in schema["items"]["anyOf"]] == ["now", "add"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=str)
def test_a_call_that_is_cut_short_says_so(say, choice, stream):
    """A38."""
    text = ARGUMENTS if choice == NAMED else TWO
    answer = say(text).chat(tools=TOOLS, tool_choice=choice, max_tokens=len(say(text).worker.script) - 6, stream=stream)
    reasons = [choice["finish_reason"] for chunk in (answer if stream else [answer]) for choice in chunk["choices"]]
    assert [reason for reason in reasons if reason] == ["length"]


def test_none_calls_nothing_and_needs_no_form(say):
    answer = say(TWO).chat(tools=TOOLS, tool_choice="none")["choices"][0]
    assert answer["message"]["content"] == TWO and "tool_calls" not in answer["message"]
    assert Lenient.asked == []


def test_a_response_format_is_for_answers_and_a_forced_call_is_none(say):
    asked = {"tools": TOOLS, "tool_choice": NAMED, "response_format": {"type": "json_object"}}
    assert say(ARGUMENTS).chat(**asked)["choices"][0]["message"]["tool_calls"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (
            {"tools": [*TOOLS, {"type": "function", "function": {"name": "odd", "parameters": UNIQUE}}]},
            "tools",
            ["Tool 'odd'", "uniqueItems"],
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "list", "parameters": {"type": "array"}}}]},
            "tools",
            ["Tool 'list'", "'array'"],
        ),
        ({"guided_regex": "a"}, "guided_regex", ["tool_choice"]),
    ],
)
def test_what_cannot_be_forced_is_refused_by_its_name(say, body, param, words, stream):
    server = say(TWO)
    asked = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "stream": stream, **body}
    status, _, answer = server.ask("/v1/chat/completions", asked)
    assert (status, answer["error"]["param"]) == (400, param)
    assert all(word in answer["error"]["message"] for word in words), answer
    assert server.chat(tools=TOOLS, tool_choice="required")["choices"][0]["finish_reason"] == "tool_calls"
