"""`<think>...</think>`, left out before tool calls now and then: Kimi K2 Thinking.

Source: the chat template of Kimi-K2-Thinking, and Moonshot's tool call guidance.
"""

from modulm_parsers_reasoning.tagged import TaggedReasoningParser

_CALLS = "<|tool_calls_section_begin|>"


class KimiK2ReasoningParser(TaggedReasoningParser):
    """A section of tool calls ends the thinking too."""

    start_marker, end_marker = "<think>", "</think>"
    also_end = (_CALLS,)
    special_tokens = (start_marker, end_marker, _CALLS)
    signs = (end_marker, _CALLS)
