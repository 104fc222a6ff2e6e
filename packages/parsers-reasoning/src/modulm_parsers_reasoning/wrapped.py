"""Thinking between tags, and tags around the answer, too: ERNIE 4.5 and Hunyuan A13B.

Source: their model cards. The tags are plain text, so in the answer itself they may be meant: only the first thing and
the last are taken for the model's own.
"""

from typing import ClassVar

from modulm.interfaces.parsers import Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_reasoning.tagged import TaggedReasoningParser


class _WrappedReasoningParser(TaggedReasoningParser):
    """A subclass names the tags around the answer."""

    start_marker, end_marker = "<think>", "</think>"
    special_tokens: ClassVar[tuple[str, ...]] = (start_marker, end_marker)
    answer: ClassVar[tuple[str, str]]

    def _answer(self, text: GrowingText) -> Reading[str]:
        start, end = self.answer
        space = yield from text.skip_space()
        if not (yield from text.accept(start)):
            yield Content(space)
            return ""
        while (yield from text.copy(Content, end)):
            space = yield from text.skip_space()
            if (yield from text.peek()):
                yield Content(end + space)
        return ""


class Ernie45ReasoningParser(_WrappedReasoningParser):
    """`...</think><response>...</response>`: the prompt ends in `<think>`."""

    answer = ("<response>", "</response>")
    special_tokens = (*_WrappedReasoningParser.special_tokens, *answer)
    starts_open = True
    signs = (_WrappedReasoningParser.end_marker, answer[0])


class HunyuanA13BReasoningParser(_WrappedReasoningParser):
    """`<think>...</think><answer>...</answer>`, with an empty pair of the first in the prompt if switched off."""

    answer = ("<answer>", "</answer>")
    special_tokens = (*_WrappedReasoningParser.special_tokens, *answer)
    signs = (_WrappedReasoningParser.end_marker, answer[0])
