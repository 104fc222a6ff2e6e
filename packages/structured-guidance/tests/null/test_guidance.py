"""What llguidance lets through is checked by others: `jsonschema`, Python's `re`, the list of choices itself."""

import json
import re

import jsonschema
import pytest

from modulm.errors import RequestError
from modulm.interfaces.structured import StructuredOutputsParams
from modulm_structured_guidance.backend import GuidanceBackend

CHOICE = ["yes", "no", 'a "quoted" one']
SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]},
    {"type": "array", "items": {"type": "integer", "minimum": 3, "maximum": 12}, "minItems": 1, "maxItems": 3},
    {"enum": ["ab", 12, None, True]},
    {"const": {"a": [1, 2]}},
    {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 3}]},
    {"type": "string", "pattern": "^[a-c]{2,5}$"},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 2},
    {
        "$defs": {
            "n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "additionalProperties": False}
        },
        "$ref": "#/$defs/n",
    },
    {"type": "string", "format": "date"},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 1},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": False},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_what_comes_is_valid_by_its_schema(backend, writing, schema):
    params = StructuredOutputsParams(json=schema)
    if not (support := GuidanceBackend.supports(params)):
        pytest.fail(f"refused: {support.reason}")
    for seed in range(8):
        jsonschema.Draft202012Validator(schema).validate(json.loads(writing.written(backend, seed, json=schema)))


def test_an_object_that_names_its_members_has_no_others_on_demand(backend, writing):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    seen = [json.loads(writing.written(backend, s, json=schema, disable_additional_properties=True)) for s in range(12)]
    assert all(set(each) <= {"a"} for each in seen) and any(seen)


def test_json_without_white_space(backend, writing):
    for seed in range(8):
        text = writing.written(backend, seed, json=SCHEMAS[1], disable_any_whitespace=True)
        assert re.fullmatch(rb"\S+", text)


def test_other_forms(backend, writing):
    for seed in range(8):
        assert isinstance(json.loads(writing.written(backend, seed, json_object=True)), dict)
        assert re.fullmatch(r"[a-f]{2}-\d{1,3}", writing.written(backend, seed, regex=r"[a-f]{2}-\d{1,3}").decode())
        assert writing.written(backend, seed, choice=["yes", "no", 'a "quoted" one']).decode() in (
            "yes",
            "no",
            'a "quoted" one',
        )
        assert re.fullmatch(rb"ab+c", writing.written(backend, seed, grammar='start: "a" "b"+ "c"'))
        assert re.fullmatch(rb"x+y", writing.written(backend, seed, grammar='root ::= "x"+ "y"'))


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"json": {"type": "object", "propertyNames": {"pattern": "a"}, "dependentSchemas": {}}}, "dependentSchemas"),
        ({"json": {"type": "nonsense"}}, "nonsense"),
        ({"regex": "("}, "regex"),
        ({"grammar": "start: missing"}, "missing"),
        ({"structural_tag": {"type": "structural_tag"}}, "a structural tag has"),
    ],
)
def test_what_is_not_enforced_is_refused_with_its_name(backend, form, reason):
    params = StructuredOutputsParams(**form)
    support = GuidanceBackend.supports(params)
    assert not support and reason in support.reason
    with pytest.raises(RequestError, match=reason) as caught:
        backend.compile(params)
    assert caught.value.parameter == "structured_outputs"


def test_sequences_do_not_disturb_each_other(backend, writing):
    compiled = backend.compile(StructuredOutputsParams(choice=["ab", "cd"]))
    first, second = compiled.start(), compiled.start()
    assert first.accept([ord("a")])
    assert writing.allowed(first) == [ord("b")]
    assert set(writing.allowed(second)) >= {ord("a"), ord("c")}
    assert not second.accept([ord("x")])
    assert first.accept([ord("b")]) and writing.allowed(first) == [writing.eos]


def test_drafts_are_taken_back(backend, writing):
    grammar = backend.compile(StructuredOutputsParams(regex="abc|abd")).start()
    before = writing.allowed(grammar)
    assert grammar.accept([ord("a"), ord("b")])
    assert writing.allowed(grammar) == [ord("c"), ord("d")]
    grammar.rollback(2)
    assert writing.allowed(grammar) == before
    grammar.rollback(0)
    with pytest.raises(ValueError, match="cannot be taken back"):
        grammar.rollback(9)


def test_white_space_has_an_end(backend, writing):
    grammar, space = backend.compile(StructuredOutputsParams(json={"type": "array"})).start(), ord(" ")
    assert grammar.accept([ord("[")])
    for count in range(25):
        if space not in writing.allowed(grammar):
            assert count == 24
            return
        assert grammar.accept([space])
    pytest.fail("it goes on")


@pytest.mark.parametrize(
    "form",
    [
        {
            "json": {
                "type": "object",
                "properties": {"name": {"const": 12}},
                "required": ["name"],
                "additionalProperties": False,
            }
        },
        {"regex": "ab nullab[0-9]name"},
        {"choice": ["null and name", "345"]},
    ],
    ids=str,
)
def test_what_is_forced_is_all_that_masks_allow(backend, writing, form):
    grammar = backend.compile(StructuredOutputsParams(**form, disable_any_whitespace="json" in form)).start()
    num_forced = 0
    for _ in range(60):
        if grammar.is_terminated:
            break
        for token in (forced := grammar.forced()):
            assert writing.allowed(grammar) == [token]
            assert grammar.accept([token])
        num_forced += len(forced)
        grammar.rollback(len(forced))
        assert grammar.forced() == forced  # it takes nothing
        ids = [each for each in writing.allowed(grammar) if each != writing.eos]
        assert not ids or grammar.accept(ids[:1])
        if not ids:
            break
    else:
        pytest.fail("it does not end")
    assert num_forced >= 3
