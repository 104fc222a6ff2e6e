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
        pairs = {**super().pairs(), "<think>": "</think>"}
        added = self.context.tokenizer.added_tokens.values() if self.context.tokenizer else ()
        is_old = bool(added) and self.start_marker not in added
        return dict(reversed(pairs.items())) if is_old else pairs
