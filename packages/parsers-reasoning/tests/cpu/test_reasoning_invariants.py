"""The testkit's suite, over every class that a name stands for; its samples are the cases of reasoning_cases.toml."""

import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

from modulm.interfaces.parsers import ResponseContext
from modulm_testkit.parsers import ReasoningParserConformance

HERE = Path(__file__).parent
CASES = tomllib.loads((HERE.parent / "null/reasoning_cases.toml").read_text())
NAMES = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]["entry-points"][
    "modulm.reasoning_parsers"
]
TOOLS = ({"name": "f"},)
MARKS = {
    "mistral": ("<think>", "</think>"),
    "granite": ("Here's my thought process:", "Here's my response:"),
    "gemma4": ("<|channel>thought\n",),
    "kimi_k3": (
        "<|close|>think<|sep|>",
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
    ),
    "openai_gptoss": ("<|start|>assistant", "<|channel|>analysis", "<|channel|>commentary", "<|channel|>final", "json"),
    "muse_glimmer": ("<|start|>assistant to=self<|message|>", "<|start|>assistant to=user<|message|>", "to=f"),
}


def conformance(name):
    parser, cases = resolve_name(NAMES[name]), CASES[name]
    prompts = [case.get("prompt", "") for case in cases]
    usual = max(prompts, key=prompts.count) if name != "minimax_m2_append_think" else ""
    about = ResponseContext(prompt=usual, tools=TOOLS)

    class Suite(ReasoningParserConformance):
        samples = [(text, parser.parse(text, about)) for text in [case["text"] for case in cases][:4]]
        prompt = usual
        tools = TOOLS
        marks = MARKS.get(name, ())

        @pytest.fixture
        def parser_class(self):
            return parser

    return Suite


for one in CASES:
    if NAMES[one] not in [NAMES[other] for other in list(CASES)[: list(CASES).index(one)]]:
        globals()[f"Test_{one}"] = conformance(one)
