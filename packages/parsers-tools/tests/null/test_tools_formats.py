"""Each format's documented inputs and the replayed bugs (A1 to A41 of public trackers) with their right values; and the
same values for every way in which the text may be cut.
"""

import json
import random
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

from modulm.interfaces.parsers import ResponseContext, collect
from modulm_parsers_tools.hermes import HermesToolParser
from modulm_parsers_tools.mistral import MistralToolParser
from modulm_parsers_tools.pythonic import PythonicToolParser

FORMATS = Path(__file__).parent / "formats"
"""A file per format: texts with their right content and calls, and `bug`, its number where trackers know it."""
NAMES = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
PARSERS = {name: resolve_name(reference) for name, reference in NAMES["modulm.tool_parsers"].items()}
TOOLS = [
    *("now", "sum", "w", "f", "a", "b", "add", "move", "set_temperature", "get_weather", "get_user_info"),
    *("get_current_temperature", "get_temperature_date", "predict_claim_fraud", "get_current_conditions"),
    *("brave_search", "get_current_weather"),
]
CONTEXT = ResponseContext(tools=[{"name": name} for name in TOOLS])


def context(case):
    return ResponseContext(tools=case["tools"]) if "tools" in case else CONTEXT


CASES = [
    pytest.param(PARSERS[file.stem], case, id=f"{file.stem}-{number}")
    for file in sorted(FORMATS.glob("*.json"))
    for number, case in enumerate(json.loads(file.read_text()))
]
each_case = pytest.mark.parametrize(("parser", "case"), CASES)
each_parser = pytest.mark.parametrize("parser", sorted(set(PARSERS.values()), key=lambda each: each.__name__))


def pushed(parser_class, pieces, about=CONTEXT, reason="stop"):
    """Return what is found in a text that comes in pieces."""
    parser = parser_class(about)
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


@each_case
def test_the_right_value_however_the_text_is_cut(parser, case):
    text, about = case["text"], context(case)
    whole = parser.parse(text, about)
    assert whole.content == case["content"]
    assert [[call.name, json.loads(call.arguments)] for call in whole.calls] == case["calls"]
    if "ids" in case:
        assert [call.id for call in whole.calls] == case["ids"]
    for pieces in ways_to_cut(text):
        assert pushed(parser, pieces, about) == whole, pieces


@each_case
def test_a_text_that_is_cut_short_is_read_as_far_as_it_goes(parser, case):
    """By max_tokens, anywhere: nothing raises, cuts do not matter, and what was told stays told."""
    text, about = case["text"], context(case)
    whole, growing, told = parser.parse(text, about), parser(about), []
    for end in range(len(text)):
        told += growing.push(text[end])
        so_far = collect(told)
        assert pushed(parser, [text[: end + 1]], about, "length") == pushed(parser, text[: end + 1], about, "length")
        assert whole.content.startswith(so_far.content)
        for index, call in enumerate(so_far.calls):
            assert whole.calls[index].name == call.name
            assert whole.calls[index].arguments.startswith(call.arguments)


def test_every_format_has_five_cases_and_every_name_a_format():
    cases = {file.stem: json.loads(file.read_text()) for file in FORMATS.glob("*.json")}
    assert {PARSERS[name] for name in cases} == set(PARSERS.values()) - {PARSERS["hf"]}  # test_tools_hf.py
    assert min(map(len, cases.values())) >= 5


@pytest.mark.parametrize("name", sorted(file.stem for file in FORMATS.glob("*.json")))
def test_a_formats_cases_are_of_every_kind(name):
    """Normal, without arguments, nested, parallel, with text beside them, and no call at all."""
    cases = json.loads((FORMATS / f"{name}.json").read_text())
    arguments = [each for case in cases for _, each in case["calls"]]
    assert any(len(case["calls"]) == 1 and case["calls"][0][1] for case in cases)
    assert {} in arguments
    assert any(isinstance(value, dict | list) for each in arguments for value in each.values())
    assert any(len(case["calls"]) > 1 for case in cases)
    assert any(case["calls"] and case["content"].strip() for case in cases)
    assert any(not case["calls"] for case in cases)


@each_parser
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


def long_case(name):
    """Return a text of the format, with %s for what its first argument that is a string says."""
    for case in json.loads((FORMATS / f"{name}.json").read_text()):
        for _, arguments in case["calls"]:
            for key, said in arguments.items():
                if isinstance(said, str) and len(said) > 1 and case["text"].count(said) == 1:
                    return case["text"].replace("%", "%%").replace(said, "%s"), key, context(case)
    raise AssertionError(f"{name} has no case with a string")


def work(parser, text, about):
    """Return how many functions are called to read a text in pieces of 20 characters."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        pushed(parser, [text[i : i + 20] for i in range(0, len(text), 20)], about)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("name", sorted(file.stem for file in FORMATS.glob("*.json")))
def test_a_call_of_100_000_characters_is_read_and_work_is_linear(name):
    text, key, about = long_case(name)
    for value in ("x", "<ä {[, "):
        small, large = (work(PARSERS[name], text % (value * (size // len(value))), about) for size in (1_000, 4_000))
        assert large < 5 * small, f"4 times of {value!r} take {large} steps, and {small}"
        whole = text % (value * (100_000 // len(value)))
        calls = pushed(PARSERS[name], [whole[i : i + 1000] for i in range(0, len(whole), 1000)], about).calls
        assert value * (100_000 // len(value)) in [json.loads(call.arguments).get(key) for call in calls]


def test_depth_is_no_matter():
    deep = "[" * 20_000 + "]" * 20_000
    (call,) = HermesToolParser.parse('<tool_call>{"name":"f","arguments":{"a":%s}}</tool_call>' % deep).calls  # noqa: UP031
    assert call.arguments == '{"a":%s}' % deep  # noqa: UP031
    (call,) = PythonicToolParser.parse(f"[f(a={deep})]").calls
    assert json.loads(call.arguments) == {"a": deep}
