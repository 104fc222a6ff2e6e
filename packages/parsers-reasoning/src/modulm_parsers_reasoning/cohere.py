"""`<|START_THINKING|>...<|END_THINKING|>` and marks around the answer: Cohere Command 3 (R7B, A) and 4.

Source: their chat templates, which end in the start mark or, without `reasoning`, in both. Citations are left as the
model writes them.
"""

from modulm_parsers_reasoning.tagged import TaggedReasoningParser

_END = "<|END_THINKING|>"
_AROUND = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")


class CohereCommand3ReasoningParser(TaggedReasoningParser):
    """Calls stand between marks of their own, which are left for the tool parser."""

    start_marker, end_marker = "<|START_THINKING|>", f"{_END}{_AROUND[0]}"
    special_tokens = (start_marker, _END, *_AROUND, "<|START_ACTION|>", "<|END_ACTION|>")
    also_end = ("<|START_ACTION|>",)
    thinks_again = True
    dropped = _AROUND
    signs = (_END, _AROUND[0])

    def pairs(self) -> dict[str, str]:
        """See `TaggedReasoningParser`; a grammar waits for the mark before the answer, too."""
        return {self.start_marker: _END}


class CohereCommand4ReasoningParser(CohereCommand3ReasoningParser):
    """The mark before the answer is another."""

    end_marker = f"{_END}{_AROUND[2]}"
    signs = (_END, _AROUND[2])
