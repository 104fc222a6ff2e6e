"""The testkit's suite, over every format. Its samples are the cases of formats/, which test_tools_formats.py judges."""

import json
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

from modulm.interfaces.parsers import ResponseContext
from modulm_testkit.parsers import ToolParserConformance

HERE = Path(__file__).parent
NAMES = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]["entry-points"][
    "modulm.tool_parsers"
]
TOOLS = [
    {"name": name} for name in ("now", "f", "a", "b", "add", "get_weather", "get_user_info", "get_current_weather")
]


def conformance(name):
    parser, cases = resolve_name(NAMES[name]), json.loads((HERE / f"formats/{name}.json").read_text())
    has_call = [case for case in cases if case["calls"]][:3]
    own = next((case["tools"] for case in has_call if "tools" in case), TOOLS)
    about = ResponseContext(tools=own)

    class Suite(ToolParserConformance):
        samples = [(case["text"], parser.parse(case["text"], about)) for case in [*has_call, *cases[-2:]]]
        tools = own

        @pytest.fixture
        def parser_class(self):
            return parser

    return Suite


TestDeepSeekV3 = conformance("deepseek_v3")
TestGLM45 = conformance("glm45")
TestGranite = conformance("granite")
TestHermes = conformance("hermes")
TestInternLM = conformance("internlm")
TestJamba = conformance("jamba")
TestKimiK2 = conformance("kimi_k2")
TestLFM2 = conformance("lfm2")
TestLlama3Json = conformance("llama3_json")
TestLongCat = conformance("longcat")
TestMiniMaxM2 = conformance("minimax_m2")
TestMistral = conformance("mistral")
TestPhi4MiniJson = conformance("phi4_mini_json")
TestPythonic = conformance("pythonic")
TestQwen3Coder = conformance("qwen3_coder")
TestSeedOSS = conformance("seed_oss")
TestXLAM = conformance("xlam")
