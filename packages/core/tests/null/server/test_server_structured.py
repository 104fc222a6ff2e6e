"""Structured output and forced calls at an engine without forms, and calls without a parser: every door says so with a
400 that names the field, and the next good request is served. The inputs are those that engines died of.
"""

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
NO_ARGUMENTS = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
ONE_ARGUMENT = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
ROOT_TWICE = 'root ::= "a"\nroot ::= "b"'
DEEP = '{"type":"array","items":' * 300 + "{}" + "}" * 300


def refused(server, path, body, field):
    """The request is refused for this field, streamed or not; then a good one is served."""
    asked = {"prompt": "a"} if path == COMPLETIONS else {"messages": HI}
    for stream in (False, True):
        status, _, answer = server.ask(path, {**asked, **body, "stream": stream})
        assert (status, answer["error"]["param"]) == (400, field), answer
        assert field in answer["error"]["message"]
        assert server.complete(prompt="a", max_tokens=2)["choices"][0]["text"] == server.text(2)
    assert server.ask("/health")[0] == 200


@pytest.mark.parametrize("choice", ["required", "auto", None, {"type": "function", "function": {"name": "now"}}])
@pytest.mark.parametrize("max_tokens", [3, 50])
def test_a_call_is_never_promised(server, choice, max_tokens):
    """A call needs a form or a parser."""
    body = {"tools": [ONE_ARGUMENT, NO_ARGUMENTS], "tool_choice": choice, "max_tokens": max_tokens}
    refused(server, CHAT, body, "tool_choice")


def test_a_tool_without_arguments_is_as_good_as_any(server):
    """A42: shown to the model beside the other one, where none may be called."""
    body = {"tools": [ONE_ARGUMENT, NO_ARGUMENTS], "tool_choice": "none", "max_tokens": 2}
    assert server.chat(**body)["choices"][0]["message"]["content"] == server.text(2)


@pytest.mark.parametrize("tools", ["f", {"name": "f"}, ["f"], [1], [ONE_ARGUMENT, None]])
def test_tools_that_are_none_are_refused(server, tools):
    """A42."""
    refused(server, CHAT, {"tools": tools, "tool_choice": "none"}, "tools")


@pytest.mark.parametrize(
    "grammar",
    [
        {"grammar": 'root ::= "a" | "b"'},
        {"grammar": ROOT_TWICE},
        {"regex": "^(.*)$"},
        {"regex": r"^(|.*)$"},
        {"regex": ""},
        {"json": {}},
        {"json": {"abc": "def"}},
        {"json": DEEP},
        {"choice": ["yes", "no\nplease", "\u0000"]},
        {},
    ],
    ids=lambda grammar: str(grammar)[:40],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_grammar_is_refused_whatever_it_is(server, path, grammar):
    """C1 and C2: good or bad, first or second, none reaches an engine that could die of it."""
    refused(server, path, {"structured_outputs": grammar}, "structured_outputs")
    for kind, value in grammar.items():
        refused(server, path, {f"guided_{kind}": value}, f"guided_{kind}")


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": "yes"}},
        {"type": "structural_tag", "format": {}},
        {"type": "TEXT"},
        {},
        "json",
        [],
    ],
    ids=str,
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_form_that_is_not_text_is_refused(server, path, form):
    """C1."""
    refused(server, path, {"response_format": form}, "response_format")


@pytest.mark.parametrize("budget", [0, 5, -3])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_thinking_budget_needs_a_parser_that_tells_the_thinking(server, path, budget):
    refused(server, path, {"thinking_token_budget": budget}, "thinking_token_budget")
