"""`<|channel>thought ... <channel|>`: Gemma 4.

Source: its chat template, which ends in an empty channel unless `enable_thinking` is set.
"""

from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_reasoning.tagged import TaggedReasoningParser

_CALL = "<|tool_call>"


class Gemma4ReasoningParser(TaggedReasoningParser):
    """The channel's name, `thought` on a line of its own, is no thought."""

    start_marker, end_marker = "<|channel>", "<channel|>"
    special_tokens = (start_marker, end_marker, _CALL)
    also_end = (_CALL,)
    thinks_again = True

    def _thinking(self, text: GrowingText, end: str) -> Reading[str]:
        if not (yield from text.accept("thought\n")) and (yield from text.accept(f"thought{end}")):
            return (yield from self._answer(text))
        return (yield from super()._thinking(text, end))
