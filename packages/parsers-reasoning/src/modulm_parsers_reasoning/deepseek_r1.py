"""`<think>...</think>` with the first tag often in the prompt: DeepSeek R1, QwQ, OLMo 3, Step 3, MiniMax M2.

Source: their chat templates, which end in `<think>` and cut past answers at `</think>`.
"""

from modulm.interfaces.parsers import TokenizerView
from modulm.interfaces.support import Rejected, Support
from modulm_parsers_reasoning.tagged import TaggedReasoningParser


class DeepSeekR1ReasoningParser(TaggedReasoningParser):
    """Everything is thinking until the end tag, unless the prompt or the request has switched it off."""

    start_marker, end_marker = "<think>", "</think>"
    special_tokens = (start_marker, end_marker)
    starts_open = True

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`; where a switch is, `qwen3` reads what comes."""
        if "enable_thinking" in chat_template:
            return Rejected("the chat template has a switch for thinking")
        return super().matches(tokenizer, chat_template)
