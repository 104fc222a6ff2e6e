"""`<mm:think>...</mm:think>`: MiniMax M3.

Source: its chat template. With `thinking_mode` "enabled" it ends in the start tag, with "disabled" in the end tag; else
the model itself chooses.
"""

from modulm_parsers_reasoning.tagged import TaggedReasoningParser


class MiniMaxM3ReasoningParser(TaggedReasoningParser):
    """Thinking may come after a first part of the answer."""

    start_marker, end_marker = "<mm:think>", "</mm:think>"
    special_tokens = (start_marker, end_marker)
    also_end = ("]<]minimax[>[<tool_call>",)
    thinks_again = True
