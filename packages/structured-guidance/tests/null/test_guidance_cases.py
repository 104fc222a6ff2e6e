"""Forms that engines were publicly reported to die of, to hang at, or to enforce in part without a word.

Each is refused, or all that is written obeys it, by the judgement of `jsonschema` or of Python's `re`.
"""

import json
import re
import time

import jsonschema
import pytest

from modulm.errors import RequestError
from modulm.interfaces.structured import StructuredOutputsParams
from modulm_structured_guidance.backend import GuidanceBackend

TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}},
}
LONG = {"type": "string", "maxLength": 2000}
OPEN_TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
}
DEEP = '{"type":"array","items":' * 5000 + "{}" + "}" * 5000
WIDE = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(50_000)}}
SCHEMAS = {
    "C5 empty": {},
    "C7 property that is no schema": {"type": "object", "properties": {"foo": "bar"}},
    "C8 no schema": {"abc": "def"},
    "C11 recursive": TREE,
    "C26 nested": {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": LONG, "c": LONG}}}},
    "C14 bounded": {"type": "string", "minLength": 10, "maxLength": 200},
    "C16 pattern and length": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
    "C17 number of items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    "C18 two integers": {"allOf": [{"type": "integer"}, {"type": "integer"}]},
    "C19 null or bool": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    "C20 not": {"not": {"type": "string"}},
    "C20 oneOf": {"oneOf": [{"type": "integer", "multipleOf": 3}, {"type": "integer", "multipleOf": 5}]},
    "C20 uniqueItems": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 2},
    "C20 contains": {"type": "array", "contains": {"const": 1}},
    "C20 propertyNames": {"type": "object", "propertyNames": {"pattern": "^a$"}, "minProperties": 1},
    "C20 dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}},
    "C20 if": {"if": {"type": "integer"}, "then": {"minimum": 3}},
    "C20 multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 100},
    "C21 patternProperties": {
        "type": "object",
        "patternProperties": {"^a": {"type": "string"}},
        "additionalProperties": False,
    },
    "C15 wide": {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(20_000)}},
    "C28 numbers": {"enum": [1, 2, 3]},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(backend, writing, name):
    schema, began = SCHEMAS[name], time.monotonic()
    params = StructuredOutputsParams(json=schema)
    if support := GuidanceBackend.supports(params):
        for seed in range(6):
            value = json.loads(writing.written(backend, seed, json=schema))
            jsonschema.Draft202012Validator(schema).validate(value)
    else:
        assert support.reason.strip()
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("schema", [DEEP, WIDE], ids=["C12", "C15"])
def test_schemas_beyond_measure(schema):
    with pytest.raises(RequestError, match=r"nested too deeply|at most .* are read"):
        StructuredOutputsParams(json=schema)


@pytest.mark.parametrize(
    "regex",
    ["", "^(.*)$", "^(|.*)$", "[a-z]{2,20000}", r"^\d+$", r"^a\/b$"],
    ids=["C10", "C2", "C2b", "C14", "C23", "C24"],
)
def test_expressions(backend, writing, regex):
    if support := GuidanceBackend.supports(StructuredOutputsParams(regex=regex)):
        for seed in range(3):
            assert re.fullmatch(regex, writing.written(backend, seed, regex=regex).decode(), re.DOTALL)
    else:
        assert support.reason.strip()


@pytest.mark.parametrize("choice", [["yes", "no\nplease"], ["yes", "no\u0000"]], ids=["C6", "C6 with NUL"])
def test_choices(backend, writing, choice):
    seen = {writing.written(backend, seed, choice=choice).decode() for seed in range(8)}
    assert seen <= set(choice)


@pytest.mark.parametrize(
    "grammar",
    ['start: / "test"\n', 'root ::= "a"\nroot ::= "b"', "root ::= ("],
    ids=["C22", "C1", "open"],
)
def test_grammars_that_are_none(backend, grammar):
    params = StructuredOutputsParams(grammar=grammar)
    support = GuidanceBackend.supports(params)
    assert not support and support.reason.strip()
    with pytest.raises(RequestError):
        backend.compile(params)
    assert backend.compile(StructuredOutputsParams(grammar='root ::= "a" | "b"'))


JUDGED = [
    ("C11", {"json": OPEN_TREE}, '{"name":"a","children":[{"children":[]},{"name":"b"}]}', '{"children":[1]}'),
    ("C16", {"json": SCHEMAS["C16 pattern and length"]}, '"abc"', '"abcd"'),
    ("C17", {"json": SCHEMAS["C17 number of items"]}, "[1,2]", "[1]"),
    ("C17", {"json": SCHEMAS["C17 number of items"]}, "[1,2]", "[1,2,3]"),
    ("C18", {"json": SCHEMAS["C18 two integers"]}, "7", "00"),
    ("C19", {"json": SCHEMAS["C19 null or bool"]}, "null", "nulltrue"),
    ("C21", {"json": SCHEMAS["C21 patternProperties"]}, '{"ab":"x"}', '{"b":"x"}'),
    ("C23", {"regex": r"^\d+$"}, "12", "d+"),
    ("C24", {"regex": r"^a\/b$"}, "a/b", r"a\/b"),
    ("C26", {"json": LONG}, f'"{"x" * 2000}"', f'"{"x" * 2001}"'),
    ("C28", {"json": {"enum": [1, 2, 3]}}, "2", '""'),
    ("C6", {"choice": ["yes", "no\nplease"]}, "no\nplease", "no"),
    ("C6", {"choice": ["yes", "no\u0000"]}, "no\u0000", "no"),
]


@pytest.mark.parametrize(("form", "good", "bad"), [case[1:] for case in JUDGED], ids=[case[0] for case in JUDGED])
def test_texts(backend, writing, form, good, bad):
    def is_whole(text):
        grammar = backend.compile(StructuredOutputsParams(**form)).start()
        return grammar.accept(list(text.encode())) and (
            grammar.is_terminated or writing.eos in writing.allowed(grammar)
        )

    if support := GuidanceBackend.supports(StructuredOutputsParams(**form)):
        assert is_whole(good) and not is_whole(bad)
    else:
        assert support.reason.strip()
