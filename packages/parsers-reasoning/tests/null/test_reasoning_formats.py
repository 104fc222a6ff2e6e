"""Thinking and answer told apart, by every name, whatever the cuts: the cases of reasoning_cases.toml."""

import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

from modulm.errors import ConfigError
from modulm.interfaces.parsers import ResponseContext, collect
from modulm.interfaces.support import Accepted, Rejected

HERE = Path(__file__).parent
CASES = tomllib.loads((HERE / "reasoning_cases.toml").read_text())
NAMES = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]["entry-points"][
    "modulm.reasoning_parsers"
]
TOOLS = ({"name": "f"},)


class Described:
    """A tokenizer whose checkpoint says what its responses look like, as transformers documents it."""

    added_tokens = {}
    response_template = {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>"},
            "content": {},
            "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": True},
        },
    }


HF = [
    ("<|im_start|>assistant\n", "<think>x</think>y", "x", "y"),
    ("<|im_start|>assistant\n<think>", "x</think>y", "x", "y"),
    ("<|im_start|>assistant\n<think></think>", "y", "", "y"),
    ("<|im_start|>assistant\n", "y <tool_call>{}</tool_call>", "", "y <tool_call>{}</tool_call>"),
]


def context_of(case):
    tools = TOOLS if case.get("tools") else ()
    return ResponseContext(prompt=case.get("prompt", ""), tools=tools, template_kwargs=case.get("names", {}))


def check(parser, context, text, reasoning, content):
    whole = parser.parse(text, context)
    assert (whole.reasoning, whole.content, whole.calls) == (reasoning, content, [])
    ways = [[text[i : i + size] for i in range(0, len(text), size)] for size in range(1, 9)]
    ways += [[text[:cut], text[cut:]] for cut in range(len(text))]
    for pieces in ways:
        assert pushed(parser, context, pieces) == whole, pieces


def pushed(parser_class, context, pieces):
    parser = parser_class(context)
    events = [event for piece in pieces for event in parser.push(piece)]
    return collect([*events, *parser.finish("stop")])


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases])
def test_the_right_value_however_the_text_is_cut(name, case):
    check(resolve_name(NAMES[name]), context_of(case), case["text"], case["reasoning"], case["content"])


def test_every_name_has_cases():
    assert set(NAMES) == {*CASES, "hf"}
    assert len(NAMES) == 38


@pytest.mark.parametrize(("prompt", "text", "reasoning", "content"), HF)
def test_a_format_that_the_checkpoint_describes(prompt, text, reasoning, content):
    context = ResponseContext(tokenizer=Described(), tools=TOOLS, prompt=prompt)
    check(resolve_name(NAMES["hf"]), context, text, reasoning, content)


def test_a_description_that_cannot_be_followed_is_refused():
    parser = resolve_name(NAMES["hf"])
    silent, pattern = Described(), Described()
    silent.response_template = None
    pattern.response_template = {"fields": {"thinking": {"open_pattern": "<t.*?>", "close": "</t>"}}}
    with pytest.raises(ConfigError, match="response_template describes, which is not there"):
        parser(ResponseContext(tokenizer=silent))
    with pytest.raises(ConfigError, match="thinking has open_pattern"):
        parser(ResponseContext(tokenizer=pattern))


@pytest.mark.parametrize("name", ["hy_v3", "hy_v4"])
def test_tags_with_a_suffix_of_the_checkpoint(name):
    class Suffixed:
        added_tokens = {7: "<think:6124c78e>", 8: "</think:6124c78e>"}

    context = ResponseContext(tokenizer=Suffixed(), prompt="<think:6124c78e>")
    check(resolve_name(NAMES[name]), context, "x </think>?</think:6124c78e>y", "x </think>?", "y")
    context = ResponseContext(tokenizer=Suffixed(), prompt="<think:6124c78e></think:6124c78e>")
    check(resolve_name(NAMES[name]), context, "y", "", "y")


def test_thinking_is_told_as_it_comes_and_a_tag_never():
    parser = resolve_name(NAMES["deepseek_r1"])(ResponseContext())
    said = [parser.push(piece) for piece in ("on", "e <", "/thi", "s </thi", "nk>t", "wo")]
    assert [[event.text for event in events] for events in said] == [["on"], ["e "], [], ["</this "], ["t"], ["wo"]]


TEMPLATES = {
    "deepseek_r1": "{% if '</think>' in text %}{% set text = text.split('</think>')[-1] %}{% endif %}<think>\n",
    "qwen3": "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
    "kimi_k2": "<|tool_calls_section_begin|></think>",
    "mistral": "[THINK][/THINK]",
    "seed_oss": "<seed:think></seed:think>{% if enable_thinking %}",
    "granite": "after 'Here is my thought process:' and",
    "minimax_m2": "<minimax:tool_call>{% if '</think>' in content %}]~b]ai\n<think>\n",
    "minimax_m3": "{% if thinking_mode == 'enabled' %}<mm:think>{% else %}</mm:think>{% endif %}",
    "deepseek_v4": "<｜DSML｜tool_calls>{% if thinking %}<think>{% else %}</think>{% endif %}",
    "gemma4": "{{- '<|channel>thought\n<channel|>' if not enable_thinking }}",
    "plamo3": "<|plamo:begin_think:plamo|><|plamo:end_think:plamo|>",
    "k2_horizon": "<ifm|think></ifm|think>",
    "hy_v3": "{% set reasoning_effort = 'no_think' %}<think:1></think:1>",
    "ernie45": "<think></think><response></response>",
    "hunyuan_a13b": "<think></think><answer></answer>{% if enable_thinking %}",
    "kimi_k3": "{% if thinking %}<|open|>think<|sep|><|close|>think<|sep|>",
    "cohere_command3": "<|START_THINKING|><|END_THINKING|><|START_RESPONSE|>",
    "cohere_command4": "<|START_THINKING|><|END_THINKING|><|START_TEXT|>",
    "openai_gptoss": "<|start|>assistant<|channel|>final<|message|>",
    "muse_glimmer": "<|start|>assistant to=user<|message|><atem:function_calls>",
    "inkling": "<|message_model|><|content_thinking|>",
    "step3p5": "<|im_start|>tool_response\n</think><think>\n",
    "nemotron_v3": "{% set truncate_history_thinking %}{% if enable_thinking %}<think></think>",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_template_tells_the_format(name):
    said = {other: resolve_name(NAMES[other]).matches(None, TEMPLATES[name]) for other in TEMPLATES}
    assert [other for other, answer in said.items() if isinstance(answer, Accepted)] == [name]
    nothing = resolve_name(NAMES[name]).matches(None, "{{ messages }}")
    assert isinstance(nothing, Rejected) and nothing.reason


class Suffixed:
    added_tokens = {7: "<think:1>", 8: "</think:1>"}


MARKS = {
    "qwen3": ({}, None, ("<think>", ("</think>",))),
    "hy_v4": ({}, Suffixed(), ("<think:1>", ("</think:1>",))),
    "mistral": ({}, Suffixed(), ("<think>", ("</think>",))),
    "k2_horizon": ({"reasoning_effort": "low"}, None, ("<ifm|think_faster>", ("</ifm|think_faster>",))),
    "kimi_k3": ({}, None, ("<|open|>think<|sep|>", ("<|close|>think<|sep|><|open|>response<|sep|>",))),
    "cohere_command4": ({}, None, ("<|START_THINKING|>", ("<|END_THINKING|><|START_TEXT|>",))),
    "hf": ({}, Described(), ("<think>", ("</think>",))),
}


@pytest.mark.parametrize("name", MARKS)
def test_marks_of_one_response(name):
    """What forms wait for and budgets write, where tokenizer or request have a say: the parser turns at them."""
    names, tokenizer, marks = MARKS[name]
    context = ResponseContext(tokenizer=tokenizer, template_kwargs=names)
    parser = resolve_name(NAMES[name])
    assert parser(context).marks() == marks
    start, (end, *_) = marks
    check(parser, context, f"{start}x{end}y", "x", "y")
