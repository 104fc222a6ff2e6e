"""What `supports` says without the library, which takes a second and brings torch; and that `compile` says the rest."""

import json
import subprocess
import sys

CODE = """
import json, sys
from modulm.interfaces.structured import StructuredOutputsParams
from modulm_structured_xgrammar.backend import XGrammarBackend
forms = map(lambda form: StructuredOutputsParams(**form), json.loads(sys.argv[1]))
said = [getattr(XGrammarBackend.supports(form), "reason", None) for form in forms]
print(json.dumps([said, sorted({"torch", "transformers", "xgrammar"} & sys.modules.keys())]))
"""
CALL = {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": {"type": "object"}}, "end": ""}
UNIQUE = {**CALL, "content": {"type": "json_schema", "json_schema": {"type": "array", "uniqueItems": True}}}
FITTING = [
    {"json": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(ab|c)+$"}}, "required": ["a"]}},
    {"json": {"type": "string", "pattern": "^(?<year>[0-9]{4})$"}},
    {"json_object": True},
    {"regex": r"^\d+(\.[0-9]{1,2})?$"},
    {"choice": ["yes", "no"]},
    {"grammar": 'root ::= "a"'},
    {"structural_tag": {"type": "structural_tag", "format": CALL}},
]
REFUSED = [
    ({"json": {"type": "array", "uniqueItems": True}}, "'uniqueItems' is not enforced"),
    ({"json": {"type": "string", "pattern": "(?=a)b"}}, "'pattern': '(?=' is not enforced"),
    ({"json": {"type": "integer", "minimum": 0.5}}, "is not enforced for integers"),
    ({"json": {"type": "array", "minItems": 2}}, "'minItems' is not enforced"),
    ({"json": {"type": "object", "minProperties": 1}}, "'minProperties' is not enforced"),
    ({"json": {}, "whitespace_pattern": " "}, "'whitespace_pattern' is not enforced"),
    ({"regex": "a(?!b)"}, "'(?!' is not enforced"),
    ({"regex": r"\bword"}, r"'\b' is not enforced"),
    ({"regex": "(a"}, "it is no expression"),
    ({"regex": "[a-z]{3,1}"}, "it is no expression"),
    ({"structural_tag": {"type": "structural_tag", "format": UNIQUE}}, "'uniqueItems' is not enforced"),
    (
        {"structural_tag": {"type": "structural_tag", "format": {"type": "regex", "pattern": "a^b"}}},
        "'^' is enforced at the ends of an expression only",
    ),
]


def test_it_answers_without_the_library():
    forms = [*FITTING, *(form for form, _ in REFUSED)]
    done = subprocess.run([sys.executable, "-c", CODE, json.dumps(forms)], capture_output=True, text=True, check=True)
    said, imported = json.loads(done.stdout)
    assert imported == []
    assert said[: len(FITTING)] == [None] * len(FITTING)
    for (form, reason), answer in zip(REFUSED, said[len(FITTING) :], strict=True):
        assert answer is not None and reason in answer, (form, answer)
