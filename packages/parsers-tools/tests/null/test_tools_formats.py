"""Each format's documented inputs and the replayed bugs (A1 to A41 of public trackers) with their right values; and the
same values for every way in which the text may be cut.
"""

import json
import random
import time

import pytest

from modulm.interfaces.parsers import ResponseContext, collect
from modulm_parsers_tools.hermes import HermesToolParser
from modulm_parsers_tools.llama3_json import Llama3JsonToolParser
from modulm_parsers_tools.mistral import MistralToolParser
from modulm_parsers_tools.pythonic import PythonicToolParser

NAMES = (
    *("now", "sum", "w", "f", "a", "b", "get_current_temperature", "get_temperature_date", "predict_claim_fraud"),
    *("get_current_conditions", "brave_search", "set_temperature", "move", "get_user_info", "get_weather", "add"),
)
CONTEXT = ResponseContext(tools=[{"name": name} for name in NAMES])
NESTED = {"record": {"months_as_customer": "19", "tags": ["a", {"b": None}], "x": 1.5e-3, "ok": True}}

HERMES = {
    # Qwen's documentation of function calling: two calls, each between tags on lines of their own.
    '<tool_call>\n{"name": "get_current_temperature", "arguments": {"location": "San Francisco, CA, USA"}}\n'
    '</tool_call>\n<tool_call>\n{"name": "get_temperature_date", "arguments": {"location": "San Francisco, CA, USA", '
    '"date": "2024-10-01"}}\n</tool_call>': (
        "\n",
        [
            ("get_current_temperature", {"location": "San Francisco, CA, USA"}),
            ("get_temperature_date", {"location": "San Francisco, CA, USA", "date": "2024-10-01"}),
        ],
    ),
    '<tool_call>{"name":"now","arguments":{}}</tool_call>': ("", [("now", {})]),  # A2
    '<tool_call>{"name": "now"}</tool_call>': ("", [("now", {})]),
    '<tool_call>{"name": "now", "arguments": null}</tool_call>': ("", [("now", {})]),
    '<tool_call>\n{"arguments": {"n1": 2, "n2": 2}, "name": "sum"}\n</tool_call>': (
        "",
        [("sum", {"n1": 2, "n2": 2})],
    ),  # A3
    '<tool_call>{"name":"w","arguments":{"t":"a </tool_call> b"}}</tool_call>': (
        "",
        [("w", {"t": "a </tool_call> b"})],
    ),  # A4
    '<tool_call>{"name":"f","arguments":{"c":"mkdir -p test/{test1,test2"}}</tool_call>': (
        "",
        [("f", {"c": "mkdir -p test/{test1,test2"})],
    ),  # A6
    '<tool_call>{"name":"f","arguments":{"c":"mkdir -p test/{test1,test2}"}}</tool_call>': (
        "",
        [("f", {"c": "mkdir -p test/{test1,test2}"})],
    ),  # A6
    f"I will look. <tool_call>\n{json.dumps({'name': 'f', 'arguments': NESTED})}\n</tool_call> There.": (
        "I will look.  There.",
        [("f", NESTED)],
    ),
    '<tool_call>{"name":"a","arguments":{"x":1}}</tool_call>'
    '<tool_call>{"name":"b","arguments":{"y":"2"}}</tool_call>': ("", [("a", {"x": 1}), ("b", {"y": "2"})]),  # A36
    '<tool_call>{"name":"a","arguments":{"x":1}}\n{"name":"b","arguments":{}}</tool_call>': (
        "",
        [("a", {"x": 1}), ("b", {})],
    ),
    "Here:\n```python\nprint({'a': 1})\n```\nDone.": ("Here:\n```python\nprint({'a': 1})\n```\nDone.", []),  # A24
    '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>': ("", [("f", {"a": 1})]),
    '<tool_call>{"name": "f", "arguments": {"a": [1, 2</tool_call>x': ("x", [("f", {"a": [1, 2]})]),
    '<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>x': ("}x", [("f", {"a": 1})]),
    '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\u00e4\\"}"}</tool_call>': ("", [("f", {"a": "ä"})]),
    '<tool_call>{"name": "f", "arguments": {"a": "1"}} <tool_call>{"name": "b", "arguments": {}}</tool_call>': (
        "",
        [("f", {"a": "1"}), ("b", {})],
    ),
    "<tool_call>nothing</tool_call>": ("<tool_call>nothing</tool_call>", []),
    '<tool_call>{"nome": "f"}</tool_call>': ('<tool_call>{"nome": "f"}</tool_call>', []),
    '<tool_call>\n{"name": 5, "arguments": {}}</tool_call>': (
        '<tool_call>\n{"name": 5, "arguments": {}}</tool_call>',
        [],
    ),
    '<tool_call>{"name":"a","arguments":{}} {"nome": 1}</tool_call>': (' {"nome": 1}', [("a", {})]),
    "a </tool_call> b <tool_ca": ("a </tool_call> b <tool_ca", []),
}
LLAMA3_JSON = {
    '{"name": "get_current_conditions", "parameters": {"location": "San Francisco, CA", "unit": "Fahrenheit"}}': (
        "",
        [("get_current_conditions", {"location": "San Francisco, CA", "unit": "Fahrenheit"})],
    ),
    '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}': (
        "",
        [("get_weather", {"city": "Paris"})],
    ),
    '<|python_tag|>brave_search.call(query="x")': ('<|python_tag|>brave_search.call(query="x")', []),
    json.dumps({"name": "predict_claim_fraud", "parameters": NESTED}): ("", [("predict_claim_fraud", NESTED)]),  # A9
    '{"name":"a","parameters":{"q":1}} I used {searchTool}': (" I used {searchTool}", [("a", {"q": 1})]),  # A11
    '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"x": "y"}}': (" ", [("a", {}), ("b", {"x": "y"})]),
    'Sure: {"parameters": {"x": {"name": "b"}}, "name": "a"} ok': ("Sure:  ok", [("a", {"x": {"name": "b"}})]),
    '{"name": "Bob", "parameters": {}}': ('{"name": "Bob", "parameters": {}}', []),  # no tool of the request
    '{"name": "a", "age": 3} {x} {': ('{"name": "a", "age": 3} {x} {', []),
    '{"answer": {"name": "a"}}': ('{"answer": {"name": "a"}}', []),
    '{"name": "a"}': ('{"name": "a"}', []),
}
MISTRAL = {
    '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]': (
        "",
        [("get_weather", {"city": "Paris"})],
    ),
    '[TOOL_CALLS][{"name":"a","arguments":{}},{"name":"b","arguments":{"k":1}}]': (
        "",
        [("a", {}), ("b", {"k": 1})],
    ),  # A31
    f"[TOOL_CALLS]f[ARGS]{json.dumps(NESTED)}": ("", [("f", NESTED)]),
    '[TOOL_CALLS]get_weather[CALL_ID]Ab3dEf9hI[ARGS]{"city": "x"}': ("", [("get_weather", {"city": "x"})]),
    'see {x} [TOOL_CALLS]f{"a":1}': ("see {x} ", [("f", {"a": 1})]),  # A30
    'a[TOOL_CALLS]a{"x": "[TOOL_CALLS]"}[TOOL_CALLS]b{} c': ("a c", [("a", {"x": "[TOOL_CALLS]"}), ("b", {})]),
    '[TOOL_CALLS][{"arguments": {"x": 1}, "name": "a", "id": "123456789"}] then': (" then", [("a", {"x": 1})]),
    "[TOOL_CALLS]just words": ("[TOOL_CALLS]just words", []),
    '[TOOL_CALLS][{"nome": 1}]': ('[TOOL_CALLS][{"nome": 1}]', []),
    '[TOOL_CALLS][{"name":"a","arguments":{}}, {"nome": 1}]': (', {"nome": 1}]', [("a", {})]),
    "[TOOL_CALLS]": ("[TOOL_CALLS]", []),
}
PYTHONIC = {
    "[get_user_info(user_id=7890, special='black')]": ("", [("get_user_info", {"user_id": 7890, "special": "black"})]),
    "[now()]": ("", [("now", {})]),
    "[set_temperature(value=-5)]": ("", [("set_temperature", {"value": -5})]),  # A12
    "[move(x=-10, y=5, z=-3.14)]": ("", [("move", {"x": -10, "y": 5, "z": -3.14})]),  # A12
    "[f(size=(800,600))]": ("", [("f", {"size": [800, 600]})]),  # A15
    '[f(s="a\nb")]': ("", [("f", {"s": "a\nb"})]),  # A15
    '[f(p="C:\\\\")]': ("", [("f", {"p": "C:\\"})]),  # A15
    "[f(a=[[1,2],[3]])]": ("", [("f", {"a": [[1, 2], [3]]})]),  # A17
    '[f(a={\'b\', \'a\'}, c=true, d=None, e="""x\ny""")]': (
        "",
        [("f", {"a": ["b", "a"], "c": True, "d": None, "e": "x\ny"})],
    ),  # A19
    "[f(a={'k': {'n': [1, (2,)]}}, b=')]')]": ("", [("f", {"a": {"k": {"n": [1, [2]]}}, "b": ")]"})]),
    "[get_weather(city='San Francisco', metric='celsius'), get_weather(city=\"Seattle\")]": (
        "",
        [("get_weather", {"city": "San Francisco", "metric": "celsius"}), ("get_weather", {"city": "Seattle"})],
    ),
    "Yes: [add(a=1, b=2)] and [1, 2] or [link](url).": (
        "Yes:  and [1, 2] or [link](url).",
        [("add", {"a": 1, "b": 2})],
    ),
    r"[f(a='BaseService\(', b='\d+')]": ("", [("f", {"a": r"BaseService\(", "b": r"\d+"})]),  # A21
    "[f(a=what is this)]": ("", [("f", {"a": "what is this"})]),
    "[f(1)]": ("[f(1)]", []),
    "[unknown(a=1)]": ("[unknown(a=1)]", []),
    "[f(a=1, 2)]": ("2)]", [("f", {"a": 1})]),
    "a [": ("a [", []),
}
CASES = [
    (parser, text, *expected)
    for parser, cases in (
        (HermesToolParser, HERMES),
        (Llama3JsonToolParser, LLAMA3_JSON),
        (MistralToolParser, MISTRAL),
        (PythonicToolParser, PYTHONIC),
    )
    for text, expected in cases.items()
]


def pushed(parser_class, pieces, reason="stop"):
    """Return what is found in a text that comes in pieces."""
    parser = parser_class(CONTEXT)
    events = [event for piece in pieces for event in parser.push(piece)]
    return collect([*events, *parser.finish(reason)])


def ways_to_cut(text):
    """Each character, 2 to 8 characters, every single cut, random cuts."""
    for size in (1, 2, 3, 5, 8):
        yield [text[start : start + size] for start in range(0, len(text), size)]
    for cut in range(1, len(text)):
        yield [text[:cut], text[cut:]]
    dice = random.Random(text)
    for _ in range(20):
        cuts = sorted(dice.sample(range(len(text) + 1), min(4, len(text))))
        yield [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


each_case = pytest.mark.parametrize(("parser", "text", "content", "calls"), CASES, ids=range(len(CASES)))


@each_case
def test_the_right_value_however_the_text_is_cut(parser, text, content, calls):
    whole = parser.parse(text, CONTEXT)
    assert whole.content == content
    assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == calls
    for pieces in ways_to_cut(text):
        assert pushed(parser, pieces) == whole, pieces


@each_case
def test_every_beginning_of_a_text_is_read_without_an_error_and_grows(parser, text, content, calls):
    """A response that max_tokens cuts anywhere; what is reported of it never shrinks."""
    parser_object, before = parser(CONTEXT), []
    for end in range(len(text)):
        events = parser_object.push(text[end])
        before += events
        assert pushed(parser, [text[: end + 1]], "length") == pushed(parser, text[: end + 1], "length")
        # What was told stays told: the whole of a longer text goes on with it.
        told, later = collect(before), parser.parse(text, CONTEXT)
        assert later.content.startswith(told.content)
        for index, call in enumerate(told.calls):
            assert later.calls[index].name == call.name
            assert later.calls[index].arguments.startswith(call.arguments)


@pytest.mark.parametrize("parser", [HermesToolParser, Llama3JsonToolParser, MistralToolParser, PythonicToolParser])
def test_noise_never_raises_and_cuts_do_not_matter(parser):
    marks = [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", '{"name": "f", '),
        *('"arguments": ', '"parameters": ', "{", "}", "[", "]", "f(", ")", "a=", '"', "'", "\\", ",", ":", " ", "\n"),
        *("x", "1", "null", '{"name": "f", "arguments": {"a": "b"}}', "[f(a=1)]", "ä", "😊", "\\u12", "\ud83d"),
    ]
    dice = random.Random(7)
    for _ in range(300):
        text = "".join(dice.choices(marks, k=dice.randrange(1, 12)))
        whole = parser.parse(text, CONTEXT)
        for size in (1, 3):
            assert pushed(parser, [text[i : i + size] for i in range(0, len(text), size)]) == whole, text
        for call in whole.calls:
            call.arguments.encode("utf-8", "surrogatepass")


def test_arguments_come_as_they_are_written():
    parser = HermesToolParser(CONTEXT)
    parser.push('<tool_call>{"name": "f", "arguments": {"a": "')
    assert [[event.text for event in parser.push(piece)] for piece in ("one", " two", "\\", "n")] == [
        ["one"], [" two"], [], ["\\n"]]  # fmt: skip


def test_ids_that_are_in_the_text_are_told_and_others_made_in_the_models_form():
    (call,) = MistralToolParser.parse("[TOOL_CALLS]f[CALL_ID]Ab3dEf9hI[ARGS]{}", CONTEXT).calls
    assert call.id == "Ab3dEf9hI"
    made = MistralToolParser(CONTEXT).call_id(0, "f")
    assert len(made) == 9 and made.isalnum()


@pytest.mark.parametrize(
    ("parser", "text", "found"),
    [
        (HermesToolParser, '<tool_call>{"name":"f","arguments":{"a":"%s"}}</tool_call>', "a"),
        (Llama3JsonToolParser, '{"name":"f","parameters":{"a":"%s"}}', "a"),
        (MistralToolParser, '[TOOL_CALLS]f[ARGS]{"a":"%s"}', "a"),
        (PythonicToolParser, '[f(a="%s")]', "a"),
    ],
)
@pytest.mark.parametrize("value", ["x" * 100_000, "\\n" * 50_000, "{[" * 50_000])
def test_long_calls_take_linear_time(parser, text, found, value):
    """100,000 characters in pieces of 4: seconds would mean that each piece reads all before it again."""
    whole = text % value
    started = time.perf_counter()
    (call,) = pushed(parser, [whole[i : i + 4] for i in range(0, len(whole), 4)]).calls
    assert time.perf_counter() - started < 2
    assert json.loads(call.arguments) == {found: json.loads(f'"{value}"')}


def test_depth_is_no_matter():
    deep = "[" * 20_000 + "]" * 20_000
    (call,) = HermesToolParser.parse('<tool_call>{"name":"f","arguments":{"a":%s}}</tool_call>' % deep).calls  # noqa: UP031
    assert call.arguments == '{"a":%s}' % deep  # noqa: UP031
    (call,) = PythonicToolParser.parse(f"[f(a={deep})]").calls
    assert json.loads(call.arguments) == {"a": deep}
