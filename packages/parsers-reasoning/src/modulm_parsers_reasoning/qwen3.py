"""`<think>...</think>`, written by the model itself and switched by `enable_thinking`: Qwen 3.

Source: Qwen3's chat template: with `enable_thinking=false` it writes an empty pair of tags into the prompt; that of
the thinking-only models of July 2025 ends in `<think>`.
"""

from modulm.interfaces.parsers import TokenizerView
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_parsers_reasoning.tagged import TaggedReasoningParser


class Qwen3ReasoningParser(TaggedReasoningParser):
    """Thinking is what stands between tags, or behind one in the prompt; without tags there is none."""

    start_marker, end_marker = "<think>", "</think>"
    special_tokens = (start_marker, end_marker)
    starts_open = False

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        if cls.end_marker not in chat_template or "enable_thinking" not in chat_template:
            return Rejected(f"the chat template has no {cls.end_marker} that 'enable_thinking' switches")
        return Accepted(f"the chat template has {cls.end_marker}, switched by 'enable_thinking'")
