"""`<|plamo:begin_think:plamo|>...<|plamo:end_think:plamo|>`: PLaMo 3.

Source: its chat template and tokenizer, whose marks are made of several tokens.
"""

from modulm_parsers_reasoning.tagged import TaggedReasoningParser


class Plamo3ReasoningParser(TaggedReasoningParser):
    """Everything is thinking until the end mark or a request for tools."""

    start_marker, end_marker = "<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"
    special_tokens = ("<|plamo:begin_", "<|plamo:end_", ":plamo|>", "<|plamo:tag|>")
    starts_open = True
    also_end = ("<|plamo:begin_tool_requests:plamo|>",)
    thinks_again = True
    dropped = ("<|plamo:tag|>",)
