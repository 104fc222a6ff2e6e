"""`<|START_THINKING|>...<|END_THINKING|>` and marks around the answer: Cohere Command 3 (R7B, A) and 4.

Source: their chat templates, which end in the start mark or, without `reasoning`, in both. Citations are left as the
model writes them.
"""

from modulm_parsers_reasoning.tagged import TaggedReasoningParser

_AROUND = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")


class CohereReasoningParser(TaggedReasoningParser):
    """Calls stand between marks of their own, which are left for the tool parser."""

    start_marker, end_marker = "<|START_THINKING|>", "<|END_THINKING|>"
    special_tokens = (start_marker, end_marker, *_AROUND, "<|START_ACTION|>", "<|END_ACTION|>")
    also_end = ("<|START_ACTION|>",)
    thinks_again = True
    dropped = _AROUND
