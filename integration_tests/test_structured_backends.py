"""Section C of the public bug reports in all four backends: a form is refused with a reason, or obeyed to the letter.

Which texts are right and which are not is the reports'; what else is written is judged by `jsonschema` and by Python's
`re`. The vocabulary is the testkit's, which has every byte. Through the server, with real weights: test_structured.py.
"""

import pytest

from modulm.errors import RequestError
from modulm.interfaces.structured import StructuredOutputsParams
from modulm.interfaces.support import Rejected
from modulm.plugins.registry import registry
from modulm_testkit.forms import ORDINARY, VOCABULARY, allowed, started, takes, text_of, written
from modulm_testkit.structured import is_right

BACKENDS = ("guidance", "xgrammar", "outlines", "lm-format-enforcer")
TEXT, INTEGERS = {"type": "string"}, {"type": "array", "items": {"type": "integer"}}
LETTERS = {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}
PATTERNS = {"type": "object", "patternProperties": {"^a": TEXT}, "additionalProperties": False}
LONG = {"type": "string", "maxLength": 2000}
INNER = {"type": "object", "properties": {"b": LONG, "c": LONG}, "required": ["b", "c"], "additionalProperties": False}
NESTED = {"type": "object", "properties": {"a": INNER}, "required": ["a"], "additionalProperties": False}
TREE = {"type": "object", "properties": {"name": TEXT, "children": {"type": "array", "items": {"$ref": "#"}}}}
FORMS = {
    "C2": ({"regex": "^(.*)$"}, ["ab"], ["a\nb"]),
    "C2 empty first": ({"regex": "^(|.*)$"}, ["ab", ""], ["a\nb"]),
    "C5": ({"json": {}}, ["1", "[]"], ["[1", "01"]),
    "C6": ({"choice": ["yes", "no\nplease"]}, ["yes", "no\nplease"], ["no", "yes\n"]),
    "C6 NUL": ({"choice": ["yes", "no\0"]}, ["yes", "no\0"], ["no"]),
    "C7": ({"json": {"type": "object", "properties": {"foo": "bar"}}}, [], ["{}"]),
    "C8": ({"json": {"abc": "def"}}, ["1"], ["01"]),
    "C10": ({"regex": ""}, [""], ["a", " "]),
    "C11": ({"json": TREE}, ['{"name":"a","children":[{"children":[]},{"name":"b"}]}'], ['{"children":[1]}']),
    "C12": ({"json": '{"type":"array","items":' * 900 + "{}" + "}" * 900}, [], []),
    "C14": ({"regex": "[a-z]{2,20000}"}, ["ab"], ["a"]),
    "C14 lengths": ({"json": {**TEXT, "minLength": 10, "maxLength": 200}}, ['"abcdefghij"'], ['"abcdefghi"']),
    "C15": (
        {"json": {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(20_000)}}},
        ["{}"],
        ['{"p1":1}'],
    ),
    "C16": ({"json": LETTERS}, ['"abc"'], ['"abcd"', '"A"']),
    "C17": ({"json": {**INTEGERS, "minItems": 2, "maxItems": 2}}, ["[1,2]"], ["[1]", "[1,2,3]"]),
    "C18": ({"json": {"allOf": [{"type": "integer"}, {"type": "integer"}]}}, ["7"], ["00"]),
    "C19": ({"json": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}}, ["null", "true"], ["nulltrue"]),
    "C20 uniqueItems": ({"json": {**INTEGERS, "uniqueItems": True}}, ["[1,2]"], ["[1,1]"]),
    "C20 oneOf": ({"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, ["1.5"], ["1"]),
    "C20 not": ({"json": {"not": TEXT}}, ["1"], ['"a"']),
    "C20 contains": ({"json": {"type": "array", "contains": {"const": 1}}}, ["[1]"], ["[2]"]),
    "C21": ({"json": PATTERNS}, ['{"ab":"x"}'], ['{"b":"x"}']),
    "C22": ({"grammar": 'start: / "test"\n'}, [], []),
    "C23": ({"regex": r"^\d+$"}, ["12"], ["d+", "1a"]),
    "C24": ({"regex": r"^a\/b$"}, ["a/b"], [r"a\/b"]),
    "C26": ({"json": NESTED}, ['{"a":{"b":"x","c":"y"}}'], [f'{{"a":{{"b":"{"x" * 2001}","c":""}}}}']),
    "C28": ({"json": {"enum": [1, 2, 3]}}, ["2"], ['""', '"2"', "4"]),
}
"""Case: a form, texts that have it, and texts that have not. Without either it must be refused, whoever is asked."""
HELD_BY_ALL = {"C6", "C10", "C23", "C24", "C28", "C19"}
NARROWER = {("xgrammar", "C21")}
"""Patterns are matched from end to end, as docs/use/structured.md says."""


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return registry("modulm.structured_output").get(request.param)(VOCABULARY)


@pytest.mark.parametrize("case", FORMS)
def test_a_form_is_refused_or_obeyed(backend, case):
    form, right, wrong = FORMS[case]
    params = StructuredOutputsParams(**form)
    try:
        support = type(backend).supports(params)
        compiled = None if isinstance(support, Rejected) else backend.compile(params)
    except RequestError as error:
        support, compiled = Rejected(str(error)), None
    if compiled is None:
        assert support.reason.strip() and case not in HELD_BY_ALL, support
        return
    assert right, "it is no form that anything could have"
    for text in right if (backend.name, case) not in NARROWER else ():
        assert takes(compiled, text), f"{text!r} cannot be written"
    for text in wrong:
        assert not takes(compiled, text), f"{text!r} can be written"
    for seed in range(4):
        ids = written(compiled, seed, most=150)
        if not allowed(started(compiled, ids)) & ORDINARY:
            assert is_right(params, text_of(ids)), text_of(ids)


@pytest.mark.parametrize("bad", ['root ::= "a"\nroot ::= "b"', "root ::= (", 'start: / "test"\n'])
def test_after_a_bad_grammar_a_good_one_is_served(backend, bad):
    """C1 and C22: it is an error's value, not the end of the process."""
    with pytest.raises(RequestError):
        backend.compile(StructuredOutputsParams(grammar=bad))
    good = StructuredOutputsParams(grammar='root ::= "a" | "b"')
    if type(backend).supports(good):
        assert takes(backend.compile(good), "b")
    assert takes(backend.compile(StructuredOutputsParams(choice=["a", "b"])), "b")
