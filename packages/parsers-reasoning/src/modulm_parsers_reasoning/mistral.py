"""`[THINK]...[/THINK]`: Magistral.

Source: mistral-common's tokenizer of version 13, and the chat template of Magistral Small 1.2.
"""

from modulm_parsers_reasoning.tagged import TaggedReasoningParser


class MistralReasoningParser(TaggedReasoningParser):
    """Both tags are tokens of their own."""

    start_marker, end_marker = "[THINK]", "[/THINK]"
    special_tokens = (start_marker, end_marker)
