"""`<think>...</think>`, written by the model itself or by the template, with a switch: Qwen 3, DeepSeek V3.1, GLM.

Source: their chat templates. Without thinking they write an end tag into the prompt, or an empty pair; those of models
that always think end in `<think>`. A model that calls a tool amid its thoughts need not close them first.
"""

from modulm.interfaces.parsers import TokenizerView
from modulm.interfaces.support import Rejected, Support
from modulm_parsers_reasoning.tagged import SPECIFIC, TaggedReasoningParser


class Qwen3ReasoningParser(TaggedReasoningParser):
    """Thinking is what stands between tags, or behind one in the prompt; without tags there is none."""

    start_marker, end_marker = "<think>", "</think>"
    special_tokens = (start_marker, end_marker)
    also_end = ("<tool_call>",)
    foreign = SPECIFIC

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`; where no switch is, `deepseek_r1` reads what comes."""
        if not any(switch in chat_template for switch in ("enable_thinking", "if thinking", "not thinking")):
            return Rejected("the chat template has no switch for thinking")
        return super().matches(tokenizer, chat_template)
