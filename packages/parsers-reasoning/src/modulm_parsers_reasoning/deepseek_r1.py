"""`<think>...</think>` with the first tag often in the prompt: DeepSeek R1, its distillations, QwQ.

Source: DeepSeek-R1's chat template, which ends in `<think>` and cuts past answers at `</think>`.
"""

from modulm.interfaces.parsers import TokenizerView
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_parsers_reasoning.tagged import TaggedReasoningParser


class DeepSeekR1ReasoningParser(TaggedReasoningParser):
    """Everything is thinking until the end tag, unless the prompt or the request has switched it off."""

    start_marker, end_marker = "<think>", "</think>"
    special_tokens = (start_marker, end_marker)
    starts_open = True

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        if cls.end_marker not in chat_template or "enable_thinking" in chat_template:
            return Rejected(f"the chat template has no {cls.end_marker}, or a switch for it")
        return Accepted(f"the chat template has {cls.end_marker}, and no switch for it")
