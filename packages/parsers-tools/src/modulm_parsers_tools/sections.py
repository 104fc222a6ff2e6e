"""Calls between tokens of their own, in a section between tokens: DeepSeek's way and Kimi's.

Knows the order of the tokens; what a call looks like is each format's own.
"""

from abc import abstractmethod
from typing import ClassVar

from modulm.interfaces.parsers import CallStart, Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.json_calls import CallParser


class SectionParser(CallParser):
    """Reads `section[0] (call[0] HEAD ARGUMENTS call[1])* section[1]`; the section's tokens may be missing.

    Attributes:
        section, call: What stands before and behind all calls, and each of them.
    """

    section: ClassVar[tuple[str, str]]
    call: ClassVar[tuple[str, str]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.signs = cls.__dict__.get("signs", cls.call[:1])

    @abstractmethod
    def head(self, text: GrowingText) -> Reading[CallStart | None]:
        """Read up to the arguments, and return the start of the call; None when this is no call."""

    def tail(self, text: GrowingText) -> Reading[None]:
        """Read what may stand between the arguments and the end of the call."""
        yield from text.skip_space()

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        while found := (yield from text.copy(Content, self.section[0], self.call[0])):
            text.record()
            if found == self.section[0]:
                yield from text.skip_space()
            is_call = found == self.call[0] or (yield from text.accept(self.call[0]))
            read = found + text.recorded()
            if is_call:
                yield from self._calls(text, read)
            else:
                yield Content(read)

    def _calls(self, text: GrowingText, read: str) -> Reading[None]:
        """Report calls, the first of which has been opened; `read` is what to give back if it is none."""
        while True:
            text.record()
            start = yield from self.head(text)
            if start is None:
                yield Content(read + text.recorded())
                return
            yield start
            yield from self.copy_arguments(text)
            text.record()
            yield from self.tail(text)
            found = yield from text.accept(self.call[1], self.section[1])
            if not found:
                yield Content(text.recorded())
                found = yield from text.copy(Content, self.call[1], self.section[1])
            text.record()
            yield from text.skip_space()
            if found != self.call[1] or (yield from text.accept(self.section[1])):
                yield Content(text.recorded() if found != self.call[1] else "")
                return
            if not (yield from text.accept(self.call[0])):
                yield Content(text.recorded())
                return
            read = self.call[0]
