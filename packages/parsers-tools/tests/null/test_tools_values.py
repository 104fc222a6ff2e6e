"""Values: JSON that is right is passed on to the letter, what is nearly right becomes right, whatever the cuts."""

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modulm.interfaces.parsers import Content, ResponseContext, collect
from modulm.interfaces.reading import TextParser
from modulm_parsers_tools.json_text import copy_value, take_string
from modulm_parsers_tools.python_text import as_json, take_argument

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
CUTS = st.lists(st.integers(1, 6), min_size=1, max_size=6)


def read(how, text, cuts=(1,)):
    """Let `how` read the text in pieces of these sizes in turn; return what it reports, its answer and the rest."""
    answers = []

    class Reader(TextParser):
        def read(self, growing):
            answers.append((yield from how(growing)))
            answers.append((yield from growing.take_until()))

    parser = Reader(ResponseContext())
    events, start, turn = [], 0, 0
    while start < len(text):
        size = cuts[turn % len(cuts)]
        events += parser.push(text[start : start + size])
        start, turn = start + size, turn + 1
    return collect([*events, *parser.finish("stop")]).content, *answers


def value(text, cuts=(1,)):
    return read(lambda growing: copy_value(growing, Content), text, cuts)


@given(JSON, st.sampled_from([None, 2]), st.booleans(), CUTS)
def test_right_json_is_passed_on_to_the_letter(said, indent, ascii_only, cuts):
    text = json.dumps(said, indent=indent, ensure_ascii=ascii_only)
    number = isinstance(said, int | float) or said is None
    behind = " <" if number else "x"
    assert value(text + behind, cuts) == (text, True, behind)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("{'a': 'it\\'s \"x\"'}", {"a": 'it\'s "x"'}),
        ("{a: 1, $b: [x, -2.5e3, .5]}", {"a": 1, "$b": ["x", -2500.0, ".5"]}),
        ("{'a': True, 'b': False, 'c': None, 'd': NaN}", {"a": True, "b": False, "c": None, "d": None}),
        ("[1, 2, ]", [1, 2]),
        ("{,'a': 1,, 'b': 2,}", {"a": 1, "b": 2}),
        ("[,1]", [1]),
        ("{'a' 1 'b': 2 'c'}", {"a": 1, "b": 2, "c": None}),
        ("{'a':, 'b':}", {"a": None, "b": None}),
        ("{'a': [1, {'b': 2] }", {"a": [1, {"b": 2}]}),
        ("{[1]: 2}", {"": [1], "2": None}),
        ('{"a": "x\ny\tz\r\x01"}', {"a": "x\ny\tz\r\x01"}),
        (r'{"a": "\d\u12 \'"}', {"a": r"\d\u12 '"}),
        ("{1: 2}", {"1": 2}),
        ("{'a': 01}", {"a": "01"}),
    ],
)
def test_what_is_nearly_json_becomes_json(text, right):
    assert json.loads(value(text + " end")[0]) == right
    assert value(text + " end", [100]) == value(text + " end")


@pytest.mark.parametrize(
    ("text", "written", "rest"),
    [
        ('{"a": [1, "b"</x>', '{"a": [1, "b"]}', "</x>"),
        ('{"a": </x>', '{"a": null}', "</x>"),
        ('{"a": 1, </x>', '{"a": 1}', "</x>"),
        ("<", "", "<"),
        ("]", "", "]"),
    ],
)
def test_a_value_ends_where_no_json_can_be(text, written, rest):
    assert value(text) == value(text, [100]) == (written, True, rest)


@given(st.text("{}[]:,\"'\\ \nab1-.u<", max_size=30), CUTS)
def test_whatever_comes_is_json_once_the_value_has_ended(text, cuts):
    written, ended, rest = value(text, cuts)
    assert value(text, [100]) == (written, ended, rest)
    if ended and written.strip():
        json.loads(written)
    if not ended:
        assert rest == ""


@given(st.text(), CUTS)
def test_a_string_says_what_it_said(said, cuts):
    assert read(take_string, json.dumps(said) + "x", cuts) == ("", said, "x")
    assert read(take_string, json.dumps(said, ensure_ascii=False) + "x", cuts) == ("", said, "x")


def test_half_a_surrogate_pair_is_replaced():
    assert read(take_string, '"\\ud83d\\ude0a \\ud83d"')[1] == "😊 \ufffd"


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(LITERALS, CUTS)
def test_python_literals_become_json(said, cuts):
    _, source, rest = read(take_argument, f"{said!r}, b=1)", cuts)
    assert rest == ", b=1)"
    assert json.loads(as_json(source)) == json.loads(json.dumps(ast.literal_eval(repr(said))))


@pytest.mark.parametrize(
    ("source", "right"),
    [
        ("{'b', 'a', 1}", ["b", "a", 1]),
        ("-(3)", -3),
        ("+2.5", 2.5),
        ("true", True),
        ("[null, false]", [None, False]),
        ("'a' 'b'", "ab"),
        ("some words", "some words"),
        ("1e999", "1e999"),
        ("b'x'", "b'x'"),
        ("{**a}", "{**a}"),
        ("f(x)", "f(x)"),
        ("-'a'", "-'a'"),
        ("", ""),
    ],
)
def test_what_is_no_literal_is_a_string_of_its_source(source, right):
    assert json.loads(as_json(source)) == right


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("'a\nb\r'", "a\nb\r"),
        ('"""a"b\n""c"""', 'a"b\n""c'),
        ("'''it's'''", "it's"),
        (r"'\d \( \n'", "\\d \\( \n"),
        (r"r'\d\n'", r"\d\n"),
        ("''", ""),
        (r"'\\'", "\\"),
    ],
)
def test_strings_are_read_as_they_are_meant(written, said):
    _, source, rest = read(take_argument, f"{written})")
    assert (json.loads(as_json(source)), rest) == (said, ")")
