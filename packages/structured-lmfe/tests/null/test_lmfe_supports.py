"""What `supports` says without the library, which imports torch where that is installed."""

import json
import subprocess
import sys

CODE = """
import json, sys
from modulm.interfaces.structured import StructuredOutputsParams
from modulm_structured_lmfe.backend import FormatEnforcerBackend
forms = map(lambda form: StructuredOutputsParams(**form), json.loads(sys.argv[1]))
said = [getattr(FormatEnforcerBackend.supports(form), "reason", None) for form in forms]
print(json.dumps([said, sorted({"interegular", "lmformatenforcer", "torch"} & sys.modules.keys())]))
"""
LIST = {"type": "array", "items": {"type": "string"}}
FITTING = [
    {"json": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["a"]}},
    {"json": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "null"}}, {"enum": ["a"]}]}},
    {"json_object": True},
    {"regex": r"^\d+(\.[0-9]{1,2})?$"},
    {"choice": ["yes", "no"]},
]
REFUSED = [
    ({"json": {"type": "array", "uniqueItems": True}}, "'uniqueItems' is not enforced"),
    (
        {"json": {"anyOf": [{"type": "string"}, {"type": ["string", "null"]}]}},
        "several of its schemas are of type 'str",
    ),
    (
        {"json": {"anyOf": [LIST, {"$ref": "#/$defs/l"}], "$defs": {"l": LIST}}},
        "several of its schemas are of type 'arr",
    ),
    ({"json": False}, "nothing is valid by the schema false"),
    ({"json": {}, "whitespace_pattern": " "}, "'whitespace_pattern' is not enforced"),
    ({"regex": "(a"}, "the expression is not read"),
    ({"regex": "[a-z]{2,20000}"}, "more than 500 repeats are not enforced in time"),
    ({"grammar": 'root ::= "a"'}, "no grammar is read"),
    ({"structural_tag": {"type": "structural_tag"}}, "no structural tag is read"),
]


def test_it_answers_without_the_library():
    forms = [*FITTING, *(form for form, _ in REFUSED)]
    done = subprocess.run([sys.executable, "-c", CODE, json.dumps(forms)], capture_output=True, text=True, check=True)
    said, imported = json.loads(done.stdout)
    assert imported == []
    assert said[: len(FITTING)] == [None] * len(FITTING)
    for (form, reason), answer in zip(REFUSED, said[len(FITTING) :], strict=True):
        assert answer is not None and reason in answer, (form, answer)
