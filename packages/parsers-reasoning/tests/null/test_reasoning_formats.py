"""Thinking and answer told apart, with the bugs replayed that public trackers know (B3 to B6), whatever the cuts."""

import pytest

from modulm.interfaces.parsers import ResponseContext, collect
from modulm.interfaces.support import Accepted, Rejected
from modulm_parsers_reasoning.deepseek_r1 import DeepSeekR1ReasoningParser
from modulm_parsers_reasoning.granite import GraniteReasoningParser
from modulm_parsers_reasoning.kimi_k2 import KimiK2ReasoningParser
from modulm_parsers_reasoning.mistral import MistralReasoningParser
from modulm_parsers_reasoning.qwen3 import Qwen3ReasoningParser
from modulm_parsers_reasoning.seed_oss import SeedOSSReasoningParser

R1, QWEN3 = DeepSeekR1ReasoningParser, Qwen3ReasoningParser
V31_ON, V31_OFF = (ResponseContext(prompt=f"<｜User｜>hi<｜Assistant｜>{tag}") for tag in ("<think>", "</think>"))
GRANITE = "Here is my thought process: hm. Here is my response: yes"
OPEN = ResponseContext(prompt="<｜User｜>hi<｜Assistant｜><think>\n")
CLOSED = ResponseContext(prompt="<|im_start|>assistant\n<think>\n\n</think>\n\n")
PLAIN = ResponseContext(prompt="<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n")
OFF = ResponseContext(template_kwargs={"enable_thinking": False})
CASES = [
    (R1, OPEN, "x</think>y", "x", "y"),
    (R1, OPEN, "<think>x</think>y", "x", "y"),  # B4
    (R1, PLAIN, "\nx\n</think>\n\ny", "\nx\n", "\n\ny"),
    (R1, ResponseContext(), "<think>\nx\n</think>\n\ny", "\nx\n", "\n\ny"),  # B3, in some of the cuts
    (R1, OPEN, "x, and then max_tokens", "x, and then max_tokens", ""),
    (R1, OPEN, "a </thin b </think", "a </thin b </think", ""),
    (R1, OPEN, "x</think>y <think>z</think>", "x", "y <think>z</think>"),
    (R1, OFF, '{"a":1}', "", '{"a":1}'),  # B6
    (R1, CLOSED, '{"a":1}', "", '{"a":1}'),
    (R1, OPEN, "</think>", "", ""),
    (R1, OPEN, "", "", ""),
    (QWEN3, PLAIN, "<think>\nx\n</think>\n\ny", "\nx\n", "\n\ny"),
    (QWEN3, OPEN, "x</think>y", "x", "y"),
    (QWEN3, PLAIN, "y without tags", "", "y without tags"),
    (QWEN3, PLAIN, " \n", "", " \n"),
    (QWEN3, PLAIN, "<thi", "", "<thi"),
    (QWEN3, PLAIN, "see <think>", "", "see <think>"),
    (QWEN3, OFF, '{"a":1}', "", '{"a":1}'),  # B6
    (QWEN3, CLOSED, " y", "", " y"),
    (QWEN3, PLAIN, "<think></think>y", "", "y"),
    (QWEN3, PLAIN, "<think>ä 😊</think>Größe", "ä 😊", "Größe"),
    (QWEN3, V31_ON, "x</think>y", "x", "y"),
    (QWEN3, V31_OFF, "y", "", "y"),
    (KimiK2ReasoningParser, PLAIN, "<think>x</think>y", "x", "y"),
    (KimiK2ReasoningParser, PLAIN, "<think>x<|tool_calls_section_begin|>y", "x", "<|tool_calls_section_begin|>y"),
    (MistralReasoningParser, PLAIN, "[THINK]x[y][/THINK]z", "x[y]", "z"),
    (MistralReasoningParser, PLAIN, "z", "", "z"),
    (SeedOSSReasoningParser, PLAIN, "<seed:think>x</seed:think>y", "x", "y"),
    (SeedOSSReasoningParser, PLAIN, "x</seed:think>y", "x", "y"),
    (GraniteReasoningParser, PLAIN, GRANITE, " hm. ", " yes"),
    (GraniteReasoningParser, PLAIN, GRANITE.replace("Here is", "Here's"), " hm. ", " yes"),
    (GraniteReasoningParser, PLAIN, "Here is my answer.", "", "Here is my answer."),
]


def pushed(parser_class, context, pieces):
    parser = parser_class(context)
    events = [event for piece in pieces for event in parser.push(piece)]
    return collect([*events, *parser.finish("stop")])


@pytest.mark.parametrize(("parser", "context", "text", "reasoning", "content"), CASES)
def test_the_right_value_however_the_text_is_cut(parser, context, text, reasoning, content):
    whole = parser.parse(text, context)
    assert (whole.reasoning, whole.content, whole.calls) == (reasoning, content, [])
    ways = [[text[i : i + size] for i in range(0, len(text), size)] for size in (1, 2, 3, 5, 8)]
    ways += [[text[:cut], text[cut:]] for cut in range(len(text))]
    ways += [[text[:a], text[a:b], text[b:]] for a in range(len(text)) for b in range(a, len(text))]
    for pieces in ways:
        assert pushed(parser, context, pieces) == whole, pieces


def test_thinking_is_told_as_it_comes_and_a_tag_never():
    parser = R1(OPEN)
    said = [parser.push(piece) for piece in ("on", "e <", "/thi", "s </thi", "nk>t", "wo")]
    assert [[event.text for event in events] for events in said] == [["on"], ["e "], [], ["</this "], ["t"], ["wo"]]


def test_the_template_tells_the_format():
    r1 = "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}<think>\n"
    qwen3 = "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    others = {
        KimiK2ReasoningParser: "<|tool_calls_section_begin|></think>",
        MistralReasoningParser: "[THINK][/THINK]",
        SeedOSSReasoningParser: "<seed:think></seed:think>",
        GraniteReasoningParser: "after 'Here is my thought process:' and",
    }
    for parser, template in {R1: r1, QWEN3: qwen3, **others}.items():
        assert isinstance(parser.matches(None, template), Accepted)
        assert isinstance(parser.matches(None, "{{ messages }}"), Rejected)
    assert isinstance(R1.matches(None, qwen3), Rejected) and isinstance(QWEN3.matches(None, r1), Rejected)
