"""`<think>...</think>` of MiniMax M2, in two forms: apart from the answer, or left in it.

Source: the chat template of MiniMax-M2, which ends in `<think>` and asks clients to send the thoughts back.
"""

from modulm.interfaces.parsers import Content, ReasoningParser, TokenizerView
from modulm.interfaces.reading import GrowingText, Reading, TextParser
from modulm.interfaces.support import Rejected, Support
from modulm_parsers_reasoning.tagged import TaggedReasoningParser
from modulm_parsers_reasoning.turn import last_mark

_CALLS = "<minimax:tool_call>"
_START, _END = "<think>", "</think>"


class MiniMaxM2ReasoningParser(TaggedReasoningParser):
    """Everything is thinking until the end tag or a call of a tool."""

    start_marker, end_marker = _START, _END
    special_tokens = (_START, _END, _CALLS)
    also_end = (_CALLS,)
    starts_open = True
    signs = (_END, _CALLS)


class MiniMaxM2AppendThinkReasoningParser(TextParser, ReasoningParser):
    """Nothing is told apart: thoughts stay in the content, and the tag that stands in the prompt comes before them."""

    special_tokens = (_START, _END)

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        return Rejected("it is for those who want the thoughts in the content, and name it")

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        if last_mark(self.context.prompt, (_START, _END)) == _START:
            space = yield from text.skip_space()
            yield from text.accept(_START)
            yield Content(_START + space)
        yield from text.copy(Content)
