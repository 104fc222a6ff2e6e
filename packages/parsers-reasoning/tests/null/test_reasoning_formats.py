"""Thinking and answer told apart, with the bugs replayed that public trackers know (B3 to B6), whatever the cuts."""

import pytest

from modulm.interfaces.parsers import ResponseContext, collect
from modulm.interfaces.support import Accepted, Rejected
from modulm_parsers_reasoning.deepseek_r1 import DeepSeekR1ReasoningParser
from modulm_parsers_reasoning.qwen3 import Qwen3ReasoningParser

R1, QWEN3 = DeepSeekR1ReasoningParser, Qwen3ReasoningParser
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
    for parser, template in ((R1, r1), (QWEN3, qwen3)):
        assert isinstance(parser.matches(None, template), Accepted)
        other = qwen3 if template is r1 else r1
        assert isinstance(parser.matches(None, other), Rejected)
        assert isinstance(parser.matches(None, "{{ messages }}"), Rejected)
