"""Thinking between two tags at the beginning of the response; what formats with tags have in common.

A chat template may have written the first tag already, or both to say that there shall be no thinking: the end of the
prompt tells. Knows no model.
"""

from typing import ClassVar

from modulm.interfaces.parsers import Content, Reasoning, ReasoningParser, TokenizerView
from modulm.interfaces.reading import GrowingText, Reading, TextParser
from modulm.interfaces.support import Accepted, Rejected, Support

_SWITCHES = ("enable_thinking", "thinking")
"""What templates call the switch of thinking."""


class TaggedReasoningParser(TextParser, ReasoningParser):
    """Reads up to the end tag. A subclass names the tags.

    Attributes:
        starts_open: Whether a response begins with thinking where neither prompt, request nor start tag tells.
        also_end: Words that end the thinking too and belong to the answer: some models call tools without an end tag.
    """

    start_marker: ClassVar[str]
    end_marker: ClassVar[str]
    starts_open: ClassVar[bool] = False
    also_end: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        if cls.end_marker not in chat_template:
            return Rejected(f"the chat template has no {cls.end_marker}")
        return Accepted(f"the chat template has {cls.end_marker}")

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`. A start tag counts wherever it was expected, so none is ever content there."""
        space = yield from text.skip_space()
        if not (yield from text.accept(self.start_marker)):
            if not self._is_open():
                yield Content(space)
                return
            yield Reasoning(space)
        found = yield from text.copy(Reasoning, self.end_marker, *self.also_end)
        if found in self.also_end:
            yield Content(found)

    def _is_open(self) -> bool:
        prompt = self.context.prompt.rstrip()
        if prompt.endswith((self.start_marker, self.end_marker)):
            return prompt.endswith(self.start_marker)
        if any(self.context.template_kwargs.get(switch) is False for switch in _SWITCHES):
            return False
        return self.starts_open
