"""Forced calls: the schema is judged by `jsonschema`, the reader by `json`, in every cut of the text."""

import itertools
import json
import random

import jsonschema
import pytest

from modulm.errors import RequestError
from modulm.frontend.forced_calls import NamedCall, RequiredCalls, arguments_schema, schema_of
from modulm.interfaces.parsers import ResponseContext, collect

TREE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "self": {"$ref": "#"}, "kind": {"const": {"$ref": "#/x"}}},
    "required": ["root"],
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}}}},
}
OTHER = {
    "type": "object",
    "properties": {"node": {"$ref": "#/definitions/node"}},
    "definitions": {"node": {"enum": ["a"]}},
}
FUNCTIONS = [{"name": "tree", "parameters": TREE}, {"name": "other", "parameters": OTHER}, {"name": "now"}]
GOOD = [
    [{"name": "tree", "parameters": {"root": {"next": {"n": 1}}, "self": {"root": {}}, "kind": {"$ref": "#/x"}}}],
    [{"name": "now", "parameters": {}}, {"name": "other", "parameters": {"node": "a"}}],
]
BAD = [
    [],
    [{"name": "tree", "parameters": {"root": {"n": "x"}}}],
    [{"name": "tree", "parameters": {"root": {}, "self": {}}}],
    [{"name": "tree", "parameters": {"root": {}, "kind": {"$ref": "#/$defs/0/x"}}}],
    [{"name": "other", "parameters": {"node": "b"}}],
    [{"name": "now", "parameters": {"x": 1}}],
    [{"name": "never", "parameters": {}}],
    [{"name": "now"}],
    {"name": "now", "parameters": {}},
]


def is_valid(schema, value):
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def test_the_form_of_required_calls_is_each_tools_own():
    schema = schema_of(FUNCTIONS, named=False, parallel=True)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert [is_valid(schema, value) for value in GOOD] == [True] * len(GOOD)
    assert [is_valid(schema, value) for value in BAD] == [False] * len(BAD)
    one = schema_of(FUNCTIONS, named=False, parallel=False)
    assert [is_valid(one, value) for value in GOOD] == [True, False]


def test_a_dialect_that_all_tools_share_is_the_documents():
    tools = [{"name": name, "parameters": TREE} for name in "ab"]
    schema = schema_of(tools, named=False, parallel=True)
    assert schema["$schema"] == TREE["$schema"] and json.dumps(schema).count("$schema") == 1
    assert schema_of(tools, named=True, parallel=True) == TREE


def test_arguments_are_an_object():
    assert arguments_schema({"name": "f", "parameters": {"properties": {"a": {}}}})["type"] == "object"
    assert arguments_schema({"name": "f", "parameters": {"$ref": "#/$defs/a"}}) == {"$ref": "#/$defs/a"}
    assert not is_valid(arguments_schema({"name": "f", "parameters": {}}), {"a": 1})
    with pytest.raises(RequestError, match=r"Tool 'f' is refused.*the type 'array'") as caught:
        arguments_schema({"name": "f", "parameters": {"type": "array"}})
    assert caught.value.parameter == "tools"


HARD = {"q": 'a "}]{[, \\', "n": [{"deep": [[{}]]}], "ä 😊": "\n", "name": "no", "parameters": {"name": "x"}}
CALLS = [("add", HARD), ("now", {}), ("add", {"a": -1.5e3})]


def written(calls, **style):
    return json.dumps([{"name": name, "parameters": arguments} for name, arguments in calls], **style)


TEXTS = {
    "compact": written(CALLS, separators=(",", ":")),
    "indented": "\n " + written(CALLS, indent=2) + " \n",
    "parameters first": json.dumps([{"parameters": arguments, "name": name} for name, arguments in CALLS]),
}


def cuts(text):
    yield [text]
    yield list(text)
    for size in (2, 3, 7):
        yield [text[start : start + size] for start in range(0, len(text), size)]
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
    for seed in range(20):
        places = sorted(random.Random(seed).sample(range(1, len(text)), 9))
        yield [text[a:b] for a, b in itertools.pairwise([0, *places, len(text)])]


def read(make, pieces):
    parser = make(ResponseContext(tools=FUNCTIONS[2:]))
    return collect([event for piece in pieces for event in parser.push(piece)] + parser.finish("stop"))


@pytest.mark.parametrize("name", TEXTS)
def test_required_calls_are_read_in_every_cut(name):
    text = TEXTS[name]
    for pieces in cuts(text):
        parsed = read(RequiredCalls, pieces)
        assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == CALLS
        assert parsed.content.strip() == ""


def test_arguments_are_told_as_they_come():
    parser = RequiredCalls(ResponseContext())
    told = [len(parser.push(piece)) for piece in TEXTS["compact"]]
    assert sum(map(bool, told)) > len(TEXTS["compact"]) / 2


@pytest.mark.parametrize("name", TEXTS)
def test_calls_that_break_off_lose_nothing_that_was_said(name):
    text = TEXTS[name]
    for length in range(len(text)):
        parsed = read(RequiredCalls, [text[:length]])
        if parsed.calls and name != "parameters first":
            whole = [json.dumps(arguments, separators=(",", ":")) for _, arguments in CALLS]
            for call, (asked, _), arguments in zip(parsed.calls, CALLS, whole, strict=False):
                assert call.name == asked
                if name == "compact":
                    assert arguments.startswith(call.arguments)
        elif not parsed.calls:
            assert parsed.content == text[:length]


def test_what_is_no_list_of_calls_is_content():
    for text in ("hello", '{"a": 1}', "[1, 2]", '["a"]', "[", '[{"name": 3}]'):
        assert read(RequiredCalls, [text]).content == text


def test_a_named_call_is_its_arguments():
    text = " " + json.dumps(HARD)
    for pieces in cuts(text):
        (call,) = read(NamedCall, pieces).calls
        assert (call.name, call.arguments) == ("now", text[1:])
    assert read(NamedCall, [" "]).calls == []
