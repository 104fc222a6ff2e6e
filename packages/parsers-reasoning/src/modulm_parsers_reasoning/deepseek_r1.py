"""`<think>...</think>` with the first tag often in the prompt: DeepSeek R1, QwQ, OLMo 3, Step 3.

Source: their chat templates, which end in `<think>` and cut past answers at `</think>`.
"""

from modulm_parsers_reasoning.tagged import SPECIFIC, TaggedReasoningParser


class DeepSeekR1ReasoningParser(TaggedReasoningParser):
    """Everything is thinking until the end tag, unless the prompt or the request has switched it off."""

    start_marker, end_marker = "<think>", "</think>"
    special_tokens = (start_marker, end_marker)
    starts_open = True
    foreign = ("enable_thinking", "if thinking", "not thinking", *SPECIFIC)
