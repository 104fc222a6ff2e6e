"""A reasoning parser and a tool parser on one response, as the front end joins them: neither knows of the other."""

import json
from pathlib import Path

import pytest

from modulm.frontend.parse import REASONING, TOOLS, ResponseReader
from modulm.interfaces.parsers import ResponseContext, collect
from modulm.plugins.registry import registry

CASES = json.loads((Path(__file__).parent / "parsers_together.json").read_text())
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case["tool"])


def read(case, size, *, with_reasoning=True):
    """Return what a response is, in pieces of this size."""
    context = ResponseContext(tools=[{"name": "get_weather", "parameters": PARAMETERS}], prompt=case["prompt"])
    think = registry(REASONING).get(case["reasoning"])(context) if with_reasoning else None
    reader = ResponseReader(think, registry(TOOLS).get(case["tool"])(context), frozenset(), parallel=True)
    text = case["text"]
    for start in range(0, len(text), size):
        reader.answer(reader.think(text[start : start + size]))
    reader.answer(reader.end_thinking("stop"))
    reader.finish("stop")
    return collect(reader.events)


def calls_of(parsed):
    return [[call.name, json.loads(call.arguments)] for call in parsed.calls]


@each_case
def test_thinking_answer_and_calls_are_told_apart(case):
    whole = read(case, len(case["text"]))
    assert (whole.reasoning.strip(), whole.content.strip()) == (case["thought"].strip(), case["content"])
    assert calls_of(whole) == case["calls"]
    for size in (1, 2, 3, 7):
        parsed = read(case, size)
        assert (parsed.reasoning, parsed.content) == (whole.reasoning, whole.content)
        assert [(call.name, call.arguments) for call in parsed.calls] == [(c.name, c.arguments) for c in whole.calls]


@each_case
def test_a_tool_parser_alone_finds_the_calls(case):
    parsed = read(case, 5, with_reasoning=False)
    assert calls_of(parsed) == case["calls"]
    assert case["thought"].strip() in parsed.content
    assert case["content"] in parsed.content
