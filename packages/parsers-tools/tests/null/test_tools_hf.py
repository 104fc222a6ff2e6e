"""Formats that a checkpoint describes itself: response templates as transformers documents them."""

import json
from dataclasses import replace

import pytest

from modulm.errors import ConfigError
from modulm.interfaces.parsers import ResponseContext, collect
from modulm.interfaces.support import Rejected
from modulm.sampling_params import SamplingParams
from modulm_parsers_tools.hf import ResponseTemplateToolParser
from modulm_testkit.parsers import ToolParserConformance

NAME_AND_ARGUMENTS = {"type": "function", "function": {"name": "{content.name}", "arguments": "{content.arguments}"}}
XML = {
    "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
    "close_pattern": r"</function>\s*</tool_call>",
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>\w+)>(?P<value>.*?)</parameter>"},
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    "repeats": True,
}
GEMMA = {
    "open_pattern": r"<start_function_call>call:(?P<name>\w+)",
    "close": "<end_function_call>",
    "content": "json",
    "content_args": {"unquoted_keys": True, "string_delims": [["<escape>", "<escape>"]]},
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
}
HERMES = {
    "open": "<tool_call>",
    "close": "</tool_call>",
    "content": "json",
    "transform": NAME_AND_ARGUMENTS,
    "repeats": True,
}
LIST = {
    "open": ["<|START_ACTION|>", "<action>"],
    "close": "<|END_ACTION|>",
    "content": "json",
    "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
    "transform_each": True,
}
LINES = {
    "open": "call ",
    "close": "\n\n",
    "content": "kv-lines",
    "content_args": {"value_parser": {"name": "json", "args": {"allow_non_json": True}}},
    "transform": {"function": {"name": "{content.name}", "arguments": {"x": "{content.x}", "y": "{content.y}"}}},
}
TOOLS = [
    {"name": "f", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}}
]


class Tokenizer:
    """As far as a parser looks at it."""

    added_tokens, special_ids = {}, ()

    def __init__(self, field, **fields):
        self.response_template = {"start_anchor": "<a>", "fields": {"tool_calls": field, "content": {}, **fields}}


@pytest.mark.parametrize(
    ("field", "text", "content", "calls"),
    [
        (
            HERMES,
            'I look.<tool_call>\n{"name": "f", "arguments": {"s": "x"}}\n</tool_call>Then.',
            "I look.Then.",
            [["f", {"s": "x"}]],
        ),
        (HERMES, '<tool_call>{"name": "now", "arguments": {}}</tool_call>', "", [["now", {}]]),
        (
            HERMES,
            '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
            '<tool_call>{"name": "b", "arguments": {"o": {"k": [1]}}}</tool_call>',
            "",
            [["a", {}], ["b", {"o": {"k": [1]}}]],
        ),
        (HERMES, '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [["a", {"x": 1}]]),
        (HERMES, "<tool_call>no</tool_call>", "<tool_call>no</tool_call>", []),
        (HERMES, '<tool_call>{"name": "a"}</tool_call>', '<tool_call>{"name": "a"}</tool_call>', []),
        (HERMES, '<tool_call>{"name": "a", "argu', '<tool_call>{"name": "a", "argu', []),
        (
            XML,
            "<tool_call>\n<function=f>\n<parameter=n>3</parameter>\n<parameter=s>4</parameter></function>"
            "\n</tool_call>",
            "",
            [["f", {"n": 3, "s": "4"}]],
        ),
        (XML, "<tool_call><function=now></function></tool_call>x<tool_call> y", "x<tool_call> y", [["now", {}]]),
        (
            XML,
            "<tool_call><function=f><parameter=s></function></parameter></function></tool_call>",
            "",
            [["f", {"s": "</function>"}]],
        ),
        (
            GEMMA,
            '<start_function_call>call:f{s:<escape>a {b}, c:"d"<escape>,n:42}<end_function_call>',
            "",
            [["f", {"s": 'a {b}, c:"d"', "n": 42}]],
        ),
        (
            LIST,
            '<action>[{"tool_name": "a", "parameters": {"x": 1}}, {"tool_name": "b", "parameters": {}}]<|END_ACTION|>',
            "",
            [["a", {"x": 1}], ["b", {}]],
        ),
        (LINES, "Well, call name: f\nx: [1]\ny: word\n\nthen", "Well, then", [["f", {"x": [1], "y": "word"}]]),
    ],
)
def test_calls_are_read_as_the_template_says_however_the_text_is_cut(field, text, content, calls):
    about = ResponseContext(tokenizer=Tokenizer(field), tools=TOOLS)
    whole = ResponseTemplateToolParser.parse(text, about)
    assert (whole.content, [[each.name, json.loads(each.arguments)] for each in whole.calls]) == (content, calls)
    for size in (1, 2, 3, 5, 8):
        parser = ResponseTemplateToolParser(about)
        events = [event for i in range(0, len(text), size) for event in parser.push(text[i : i + size])]
        assert collect([*events, *parser.finish("stop")]) == whole


def test_marks_around_content_are_left_out():
    tokenizer = Tokenizer(
        HERMES, content={"open": "<say>", "close": "</say>"}, thinking={"open": "<t>", "close": "</t>"}
    )
    whole = ResponseTemplateToolParser.parse("<t>x</t><say>Hi</say>", ResponseContext(tokenizer=tokenizer))
    assert whole.content == "<t>x</t>Hi"


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"close": "x"}, "has nothing that opens it"),
        ({"open": "x", "content": "yaml"}, "content 'yaml' is unknown"),
        ({"open_pattern": "("}, "is no regular expression"),
        ({"open_pattern": r"\w+<"}, "has no word at its beginning"),
        ({"open_pattern": "a|b"}, "has no word at its beginning"),
        ({"open_pattern": "a(b)|c(d)"}, "has no word at its beginning"),
    ],
)
def test_a_template_that_cannot_be_followed_is_refused(field, why):
    with pytest.raises(ConfigError, match=why):
        ResponseTemplateToolParser(ResponseContext(tokenizer=Tokenizer(field)))


def test_a_tokenizer_without_a_template_is_refused():
    class Bare:
        response_template = None

    with pytest.raises(ConfigError, match="'hf' is refused: .* there is none"):
        ResponseTemplateToolParser(ResponseContext(tokenizer=Bare()))
    assert isinstance(ResponseTemplateToolParser.matches(Bare(), ""), Rejected)
    assert ResponseTemplateToolParser.adjust(SamplingParams(), ResponseContext()).skip_special_tokens is False


class HermesByTemplate(ResponseTemplateToolParser):
    """The parser with a tokenizer, which the suite's context has not."""

    def __init__(self, context):
        super().__init__(replace(context, tokenizer=Tokenizer(HERMES)))


class TestHF(ToolParserConformance):
    samples = [
        (text, HermesByTemplate.parse(text))
        for text in (
            '<tool_call>{"name": "f", "arguments": {"s": "x y z"}}</tool_call>',
            'I look. <tool_call>{"name": "now", "arguments": {}}</tool_call> Then.',
            "<tool_call>no</tool_call>",
        )
    ]

    @pytest.fixture
    def parser_class(self):
        return HermesByTemplate
