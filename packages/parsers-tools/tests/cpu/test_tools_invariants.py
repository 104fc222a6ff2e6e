"""The testkit's suite, over every format. Samples are the cases of null/formats/, judged by test_tools_formats.py."""

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
    parser, cases = resolve_name(NAMES[name]), json.loads((HERE.parent / f"null/formats/{name}.json").read_text())
    has_call = [case for case in cases if case["calls"]][:3]
    own = next((case["tools"] for case in has_call if "tools" in case), TOOLS)
    about = ResponseContext(tools=own)

    class Suite(ToolParserConformance):
        samples = [(case["text"], parser.parse(case["text"], about)) for case in [*has_call, *cases[-2:]]]
        tools = own
        frames = parser.frames

        @pytest.fixture
        def parser_class(self):
            return parser

    return Suite


TestApertus = conformance("apertus")
TestCohereCommand = conformance("cohere_command3")
TestDeepSeekV3 = conformance("deepseek_v3")
TestDeepSeekV32 = conformance("deepseek_v32")
TestDeepSeekV4 = conformance("deepseek_v4")
TestDeepSeekV41 = conformance("deepseek_v41")
TestDots = conformance("dots")
TestErnie45 = conformance("ernie45")
TestFunctionGemma = conformance("functiongemma")
TestGemma4 = conformance("gemma4")
TestGigaChat3 = conformance("gigachat3")
TestGLM45 = conformance("glm45")
TestGranite = conformance("granite")
TestGranite20bFC = conformance("granite-20b-fc")
TestHermes = conformance("hermes")
TestHunyuan = conformance("hy_v3")
TestInkling = conformance("inkling")
TestInternLM = conformance("internlm")
TestJamba = conformance("jamba")
TestK2Horizon = conformance("k2_horizon")
TestKimiK2 = conformance("kimi_k2")
TestKimiK3 = conformance("kimi_k3")
TestLFM2 = conformance("lfm2")
TestLlama3Json = conformance("llama3_json")
TestLongCat = conformance("longcat")
TestMiMo = conformance("mimo")
TestMiniCPM5 = conformance("minicpm5")
TestMiniMaxM2 = conformance("minimax_m2")
TestMiniMaxM3 = conformance("minimax_m3")
TestMistral = conformance("mistral")
TestMuseGlimmer = conformance("muse_glimmer")
TestOlmo3 = conformance("olmo3")
TestOpenAI = conformance("openai")
TestPhi4MiniJson = conformance("phi4_mini_json")
TestPlamo3 = conformance("plamo3")
TestPythonic = conformance("pythonic")
TestQwen3Coder = conformance("qwen3_coder")
TestSeedOSS = conformance("seed_oss")
TestStep3 = conformance("step3")
TestXLAM = conformance("xlam")
