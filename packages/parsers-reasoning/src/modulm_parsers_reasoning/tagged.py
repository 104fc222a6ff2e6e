"""Thinking between two tags at the beginning of the response; what formats with tags have in common.

A chat template may have written the first tag already, or both to say that there shall be no thinking: the end of the
prompt tells. Knows no model.
"""

from typing import ClassVar

from modulm.interfaces.parsers import Content, Reasoning, ReasoningParser
from modulm.interfaces.reading import GrowingText, Reading, TextParser

_SWITCHES = ("enable_thinking", "thinking")
"""What templates call the switch of thinking."""


class TaggedReasoningParser(TextParser, ReasoningParser):
    """Reads up to the end tag. A subclass names the tags.

    Attributes:
        starts_open: Whether a response begins with thinking where neither prompt, request nor start tag tells.
    """

    start_marker: ClassVar[str]
    end_marker: ClassVar[str]
    starts_open: ClassVar[bool]

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`. A start tag counts wherever it was expected, so none is ever content there."""
        space = yield from text.skip_space()
        if not (yield from text.accept(self.start_marker)):
            if not self._is_open():
                yield Content(space)
                return
            yield Reasoning(space)
        yield from text.copy(Reasoning, self.end_marker)

    def _is_open(self) -> bool:
        prompt = self.context.prompt.rstrip()
        if prompt.endswith((self.start_marker, self.end_marker)):
            return prompt.endswith(self.start_marker)
        if any(self.context.template_kwargs.get(switch) is False for switch in _SWITCHES):
            return False
        return self.starts_open
