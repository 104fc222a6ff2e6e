"""Responses in messages, `<|start|>assistant HEADER<|message|>BODY` and an end mark: what such formats have in common.

The header says whom a message is for. Thinking is left to a reasoning parser: where none has taken it out of the text
it is content with its marks, while those around answers are left out. Knows no channel.
"""

import re
from abc import abstractmethod
from typing import ClassVar

from modulm.interfaces.parsers import Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.json_calls import CallParser

START, MESSAGE = "<|start|>", "<|message|>"
_WORDS = re.compile(r"[\w \n.=:/-]+")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class ChannelParser(CallParser):
    """Reads message by message.

    Attributes:
        openings: With what a header may go on where the prompt, or a model that forgets it, has left out its beginning.
        header_marks: What may stand in a header beside words.
        ends: What may stand behind a body.
        starts: With what a response may begin of which the prompt has the header: with calls.
    """

    openings: ClassVar[tuple[str, ...]]
    header_marks: ClassVar[tuple[str, ...]] = ()
    ends: ClassVar[tuple[str, ...]]
    starts: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def kind(self, header: str, recipient: str) -> str:
        """Return what the message is: "call", "answer", "thinking", or "" for none that is known."""

    @abstractmethod
    def copy_calls(self, text: GrowingText, read: str, recipient: str) -> Reading[None]:
        """Report the calls that a body begins with; `read` is its header, or that one of `starts` with which it begins.

        If it begins with none, `read` and what is read here is content.
        """

    @property
    def marks(self) -> tuple[str, ...]:
        """What ends a body."""
        return (START, *self.openings, *self.ends)

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        leads = (START, MESSAGE, *self.openings, *(" " + each for each in self.openings))
        found = yield from text.accept(*leads, *self.starts)
        if found in self.starts:
            yield from self.copy_calls(text, found, "")
            found = ""
        while True:
            if found and found not in self.ends:
                found = yield from self._message(text, found)
            if not found or found in self.ends:
                found = yield from text.copy(Content, *self.marks)
                if not found:
                    return

    def _message(self, text: GrowingText, opening: str) -> Reading[str]:
        """Report a message of which the opening was read; returns the mark that was read behind it, if any."""
        text.record()
        if opening != MESSAGE:
            while (yield from text.take_while(_WORDS)) or (yield from text.accept(*self.header_marks)):
                pass
        header = opening + text.recorded()
        text.record()
        is_whole = opening == MESSAGE or (yield from text.accept(MESSAGE))
        read = header + text.recorded()
        recipient = _RECIPIENT.search(header)
        name = recipient[1] if recipient else ""
        kind = self.kind(header, name) if is_whole else ""
        if kind == "answer":
            return ""
        if kind == "call":
            yield from self.copy_calls(text, read, name)
            return ""
        yield Content(read)
        if kind != "thinking":
            return ""
        found = yield from text.copy(Content, *self.marks)
        yield Content(found if found in self.ends else "")
        return found if found not in self.ends else ""
