"""`<think>...</think>`, thinking unless told otherwise: Step 3.5 and 3.7, Ling 3, Holo 2, Granite 4.2.

Source: Step's chat template, which ends in `<think>`; the others have a switch whose default is to think.
"""

from modulm_parsers_reasoning.tagged import TaggedReasoningParser


class Step3p5ReasoningParser(TaggedReasoningParser):
    """Everything is thinking until the end tag or a call of a tool."""

    start_marker, end_marker = "<think>", "</think>"
    special_tokens = (start_marker, end_marker)
    also_end = ("<tool_call>",)
    starts_open = True
    signs = (end_marker, "<|im_start|>tool_response")
