"""The page of keywords: its cells say what the numbers say, and the backends still do what it says."""

import json

import pytest

import keywords
from keywords import BACKENDS, _cell, cases
from modulm.interfaces.structured import StructuredOutputsParams
from modulm.plugins.registry import registry
from workspace import ROOT


def test_cells():
    assert [_cell(3, 0, 0, 0), _cell(0, 2, 0, 0), _cell(0, 1, 1, 0)] == ["no", "yes", "yes, narrower"]
    assert [_cell(1, 2, 0, 0), _cell(1, 0, 0, 1)] == ["2 of 3", "1 of 2, syntax only"]


def test_a_schema_without_a_type_is_tried_with_one():
    tests = [{"data": data, "valid": True} for data in (1, 2.5, True, "a", None)]
    found = list(cases([{"schema": {"$schema": "x", "minimum": 1}, "tests": tests}]))
    assert found == [({"minimum": 1}, tests), ({"type": "number", "minimum": 1}, tests[:2])]
    assert len(list(cases([{"schema": {"type": "string", "minLength": 1}, "tests": tests}]))) == 1


def test_only_syntax_is_let_through():
    rows = keywords.tomllib.loads(keywords.DATA.read_text())
    assert rows.keys() >= {"`required`", "`uniqueItems`", "format uuid"}
    wrong = {keyword for keyword, cells in rows.items() if any(cells[name][3] for name in BACKENDS)}
    assert wrong <= set(keywords.SYNTAX_ONLY)
    assert (ROOT / keywords.PAGE).read_text() == keywords.page()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    "schema", [{"uniqueItems": True}, {"not": {}}, {"oneOf": [{"type": "integer"}, {}]}], ids=json.dumps
)
def test_what_all_refuse_is_refused(name, schema):
    assert not registry("modulm.structured_output").get(name).supports(StructuredOutputsParams(json=schema))
