"""Structural tags: which texts each format lets pass. The answers are xgrammar's, whose notation it is (0.2.9)."""

import json
import re

import jsonschema
import pytest

from modulm.interfaces.structured import StructuredOutputsParams
from modulm_structured_guidance.backend import GuidanceBackend

INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}}
TAG = {"type": "tag", "begin": "<f>", "content": INTEGER, "end": "</f>"}
OTHER = {
    **TAG,
    "begin": "<fä=",
    "content": {"type": "json_schema", "json_schema": {"type": "boolean"}},
    "end": ["!", "</>"],
}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG, OTHER]}
SEPARATED = {"type": "tags_with_separator", "tags": [TAG, OTHER], "separator": ", "}
THINK = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}
A = {"type": "const_string", "value": "a"}
CASES = [
    (
        TRIGGERED,
        ["", "hi\n<g", "hi<f>1</f>", "<f>1</f>", "<f>1</f>bye", "hi<f>1</f><f>2</f>x<fä=true!y", "<fä=false</>", "< f"],
        ["<f", "<fa>", "hi<f>x</f>", "<f>1", "<f>1<", "<fä=1!", "<f>1</f> <f"],
    ),
    (
        {**TRIGGERED, "at_least_one": True},
        ["<f>1</f>", "<f>1</f>bye", "<fä=true!x<f>3</f>"],
        ["", "hi", "hi<f>1</f>", "<f>1</f><f"],
    ),
    (
        {**TRIGGERED, "stop_after_first": True},
        ["", "hi", "hi<f>1</f>", "<f>1</f>"],
        ["<f>1</f>bye", "<f>1</f><f>1</f>", "<f"],
    ),
    (
        {**TRIGGERED, "at_least_one": True, "stop_after_first": True},
        ["<f>1</f>", "<fä=true</>"],
        ["", "hi<f>1</f>", "<f>1</f>bye"],
    ),
    (SEPARATED, ["", "<f>1</f>", "<f>1</f>, <fä=true!, <f>2</f>"], ["<f>1</f>, ", "<f>1</f><f>1</f>", "x"]),
    ({**SEPARATED, "at_least_one": True}, ["<f>1</f>", "<f>1</f>, <f>1</f>"], ["", "x"]),
    ({**SEPARATED, "at_least_one": True, "stop_after_first": True}, ["<f>1</f>"], ["", "<f>1</f>, <f>1</f>"]),
    (
        {"type": "sequence", "elements": [THINK, INTEGER]},
        ["<think>a<b></think>12", "<think></think>1"],
        ["12", "<think>a"],
    ),
    (
        {"type": "sequence", "elements": [{"type": "any_text"}, TAG]},
        ["<f>1</f>", "a < b <f>1</f>"],
        ["", "a", "<f>1</f>x"],
    ),
    ({"type": "sequence", "elements": [{"type": "any_text"}, A]}, ["a", "xxa"], ["", "xa!"]),
    ({"type": "or", "elements": [A, INTEGER]}, ["a", "12"], ["", "b", "a1"]),
    ({"type": "optional", "content": A}, ["", "a"], ["aa"]),
    ({"type": "plus", "content": A}, ["a", "aaa"], ["", "b"]),
    ({"type": "star", "content": A}, ["", "aa"], ["b"]),
    ({"type": "repeat", "min": 2, "max": 3, "content": A}, ["aa", "aaa"], ["a", "aaaa"]),
    ({"type": "repeat", "min": 2, "max": -1, "content": A}, ["aa", "aaaaa"], ["a"]),
    ({"type": "regex", "pattern": r"a/b\/[c-e]+\\"}, ["a/b/cd\\"], ["", "ab"]),
    ({"type": "grammar", "grammar": 'root ::= "x" y\ny ::= [0-9]+'}, ["x12"], ["x", "12"]),
    ({"type": "grammar", "grammar": 'start: "x" N\nN: /[0-9]+/', "syntax": "lark"}, ["x12"], ["x", "12"]),
    ({"type": "json_schema", "json_schema": True}, ["1", "[null]"], ["", "x"]),
    ({"type": "any_text"}, ["", "x\n</"], []),
]


def passes(backend, tag, text, writing):
    grammar = backend.compile(StructuredOutputsParams(structural_tag=tag)).start()
    for byte in text.encode():
        if byte not in writing.allowed(grammar):
            return False
        assert grammar.accept([byte])
    return writing.eos in writing.allowed(grammar)


@pytest.mark.parametrize(("form", "good", "bad"), CASES, ids=lambda value: json.dumps(value)[:70])
def test_formats_let_pass_what_they_say(backend, writing, form, good, bad):
    tag = {"type": "structural_tag", "format": form}
    assert GuidanceBackend.supports(StructuredOutputsParams(structural_tag=tag))
    assert [text for text in good if not passes(backend, tag, text, writing)] == []
    assert [text for text in bad if passes(backend, tag, text, writing)] == []


OLDER = {
    "type": "structural_tag",
    "structures": [{"begin": "<f=add>", "schema": {"type": "object", "properties": {"a": {"type": "integer"}},
                                                    "required": ["a"], "additionalProperties": False}, "end": "</f>"}],
    "triggers": ["<f="],
}  # fmt: skip


def test_the_older_notation(backend, writing):
    for text in ("", "hi", 'x<f=add>{"a": 1}</f> and <f=add>{"a": 2}</f>'):
        assert passes(backend, OLDER, text, writing)
    for text in ("<f=", "<f=add>{}</f>", "<f=sub>{}</f>"):
        assert not passes(backend, OLDER, text, writing)
    for seed in range(5):
        forced = {"type": "structural_tag", "format": {**TRIGGERED, "at_least_one": True, "stop_after_first": True}}
        text = writing.written(backend, seed, structural_tag=forced).decode()
        found = re.fullmatch(r"<f>(.*)</f>|<fä=(.*)(?:!|</>)", text, re.DOTALL)
        jsonschema.validate(json.loads(found[1] or found[2]), {"type": ["integer", "boolean"]})


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ({"type": "structural_tag"}, "'format', or 'structures'"),
        ({"type": "tag"}, "of the type 'structural_tag'"),
        ({"format": {"type": "qwen_xml_parameter", "json_schema": {}}}, "'qwen_xml_parameter' is not read"),
        ({"format": {**TAG, "begin": {"type": "token", "token": 3}}}, "'begin' must be a text"),
        ({"format": {**TAG, "content": {"type": "json_schema", "json_schema": {"uniqueItems": True}}}}, "uniqueItems"),
        ({"format": {"type": "any_text", "excludes": ["a"]}}, "'excludes' of the format 'any_text' is not enforced"),
        ({"format": {**TRIGGERED, "triggers": ["<g"]}}, "no trigger begins the tag '<f>'"),
        ({"format": {"type": "sequence", "elements": [{"type": "any_text"}, INTEGER]}}, "anything but fixed words"),
        ({"format": {"type": "json_schema", "json_schema": 3}}, "JSON"),
        ({"format": {"type": "regex", "pattern": "("}}, "regex"),
        ({"format": {"type": "grammar", "grammar": "root ::= ("}}, "Expected ')'"),
        ({"format": {"type": "grammar", "grammar": 'root ::= "a"\nroot ::= "b"'}}, "defined more than once"),
        ({"structures": [3], "triggers": []}, "'structures' must be a list of objects"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_what_is_not_read_is_refused_with_the_reason(tag, reason):
    support = GuidanceBackend.supports(StructuredOutputsParams(structural_tag=tag))
    assert not support and reason in support.reason, support
