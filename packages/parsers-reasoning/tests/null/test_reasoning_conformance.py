"""The testkit's suite, over every format."""

import pytest

from modulm.interfaces.parsers import Parsed
from modulm_parsers_reasoning.deepseek_r1 import DeepSeekR1ReasoningParser
from modulm_parsers_reasoning.granite import GraniteReasoningParser
from modulm_parsers_reasoning.kimi_k2 import KimiK2ReasoningParser
from modulm_parsers_reasoning.mistral import MistralReasoningParser
from modulm_parsers_reasoning.qwen3 import Qwen3ReasoningParser
from modulm_parsers_reasoning.seed_oss import SeedOSSReasoningParser
from modulm_testkit.parsers import ReasoningParserConformance


class TestDeepSeekR1(ReasoningParserConformance):
    prompt = "<｜User｜>hi<｜Assistant｜><think>\n"
    samples = [
        ("I think.\n</think>\n\nI answer.", Parsed("\n\nI answer.", "I think.\n")),
        ("<think>I think.</think>I answer.", Parsed("I answer.", "I think.")),
        ("I think, and then", Parsed("", "I think, and then")),
    ]

    @pytest.fixture
    def parser_class(self):
        return DeepSeekR1ReasoningParser


class TestQwen3(ReasoningParserConformance):
    prompt = "<|im_start|>assistant\n"
    samples = [
        ("<think>\nI think.\n</think>\n\nI answer.", Parsed("\n\nI answer.", "\nI think.\n")),
        ("I answer.", Parsed("I answer.", "")),
    ]

    @pytest.fixture
    def parser_class(self):
        return Qwen3ReasoningParser


class TestKimiK2(ReasoningParserConformance):
    samples = [("<think>I think.</think>I answer.", Parsed("I answer.", "I think."))]

    @pytest.fixture
    def parser_class(self):
        return KimiK2ReasoningParser


class TestMistral(ReasoningParserConformance):
    samples = [("[THINK]I think.[/THINK]I answer.", Parsed("I answer.", "I think."))]

    @pytest.fixture
    def parser_class(self):
        return MistralReasoningParser


class TestSeedOSS(ReasoningParserConformance):
    samples = [("<seed:think>I think.</seed:think>I answer.", Parsed("I answer.", "I think."))]

    @pytest.fixture
    def parser_class(self):
        return SeedOSSReasoningParser


class TestGranite(ReasoningParserConformance):
    samples = [("Here is my thought process:I think.Here is my response:I answer.", Parsed("I answer.", "I think."))]

    @pytest.fixture
    def parser_class(self):
        return GraniteReasoningParser
