"""`[THINK]...[/THINK]`: Magistral, the first of which wrote `<think>...</think>`.

Source: mistral-common's tokenizers of versions 11 and 13, and the chat template of Magistral Small 1.2.
"""

from modulm_parsers_reasoning.tagged import TaggedReasoningParser


class MistralReasoningParser(TaggedReasoningParser):
    """Both tags are tokens of their own in version 13, and plain text in version 11."""

    start_marker, end_marker = "[THINK]", "[/THINK]"
    special_tokens = (start_marker, end_marker)

    def pairs(self) -> dict[str, str]:
        """See `TaggedReasoningParser`."""
        return {**super().pairs(), "<think>": "</think>"}
