"""A text that grows, and parsers that read it as if it were whole: so no result can depend on how it was cut.

A format's parser derives from `TextParser` and writes one generator, `read`, which asks `GrowingText` for the next
thing by `yield from` and yields events:

    class Bare(TextParser, ToolParser):
        def read(self, text):
            index = 0
            while (yield from text.copy(Content, "<call>")):
                yield CallStart(index, (yield from text.take_until("</call>")))
                yield CallArguments(index, "{}")
                index += 1

Each question waits (by yielding None) until more text could not change the answer; none tells how much text is there.
Knows no format.
"""

import functools
import re
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from modulm.interfaces.parsers import (
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
    ResponseContext,
    ResponseParser,
)

Answer = TypeVar("Answer")
Reading = Generator[Event | None, None, Answer]
"""Yields events, and None where it needs more text; returns the answer."""
Make = Callable[[str], Event]


class GrowingText:
    """The text of one response. `append` and `end` are for whoever brings it, all else for whoever reads it."""

    def __init__(self) -> None:
        self._held = ""
        self._at = 0
        self._ended = False
        self._recorded: list[str] | None = None

    def append(self, text: str) -> None:
        """More text has come."""
        self._held = self._held[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """No more will come."""
        self._ended = True

    def peek(self, length: int = 1) -> Reading[str]:
        """Return the next characters without reading past them; fewer only at the end of the text."""
        while len(self._held) - self._at < length and not self._ended:
            yield None
        return self._held[self._at : self._at + length]

    def take(self, length: int = 1) -> Reading[str]:
        """Read the next characters; fewer only at the end of the text."""
        found = yield from self.peek(length)
        return self._advance(len(found))

    def accept(self, *words: str) -> Reading[str]:
        """Read the longest of the words with which the text goes on; "" if it goes on otherwise."""
        while not self._ended and any(self._is_open(word) for word in words):
            yield None
        fitting = [word for word in words if self._held.startswith(word, self._at)]
        return self._advance(len(max(fitting, key=len, default="")))

    def copy(self, make: Make, *until: str) -> Reading[str]:
        """Report the text, as soon as it is certain, up to the first of the words `until`.

        Returns that word, having read past it; "" when the text ended without one. Of words that begin at one place
        the longest counts.
        """
        while True:
            found = _pattern(until).search(self._held, self._at) if until else None
            pending = len(self._held) if self._ended else self._first_open(until)
            if found is not None and (found.start() < pending or self._ended):
                certain = found.start()
            else:
                certain, found = pending, None
            if certain > self._at:
                yield make(self._advance(certain - self._at))
            if found is not None:
                return self._advance(len(found.group()))
            if self._ended:
                return ""
            yield None

    def take_until(self, *until: str) -> Reading[str]:
        """Read up to the first of the words and past it; return what is before it, or all there is if none comes."""
        pieces: list[str] = []

        def keep(piece: str) -> Event:
            pieces.append(piece)
            return NOTHING

        yield from self.copy(keep, *until)
        return "".join(pieces)

    def copy_while(self, make: Make, characters: "re.Pattern[str]") -> Reading[None]:
        """Report text as long as its characters match; the pattern is one of a single character, repeated."""
        while True:
            found = characters.match(self._held, self._at)
            if found is not None and found.end() > self._at:
                yield make(self._advance(found.end() - self._at))
            if self._at < len(self._held) or self._ended:
                return
            yield None

    def take_while(self, characters: "re.Pattern[str]") -> Reading[str]:
        """Read as long as characters match, and return them."""
        pieces: list[str] = []

        def keep(piece: str) -> Event:
            pieces.append(piece)
            return NOTHING

        yield from self.copy_while(keep, characters)
        return "".join(pieces)

    def skip_space(self) -> Reading[str]:
        """Read white space, and return it."""
        return (yield from self.take_while(SPACE))

    def record(self) -> None:
        """Keep what is read from now on, to be able to give it back as it was."""
        self._recorded = []

    def recorded(self) -> str:
        """Return what was read since `record`, and keep no more."""
        kept, self._recorded = self._recorded or [], None
        return "".join(kept)

    def _advance(self, length: int) -> str:
        read = self._held[self._at : self._at + length]
        self._at += length
        if self._recorded is not None:
            self._recorded.append(read)
        return read

    def _is_open(self, word: str) -> bool:
        """Whether the text that is there is a beginning of the word, and no more."""
        rest = len(self._held) - self._at
        return rest < len(word) and word.startswith(self._held[self._at :])

    def _first_open(self, words: Sequence[str]) -> int:
        """Return where the first word may have begun that is not complete; the end if there is none."""
        beginnings, longest = _beginnings(tuple(words))
        for start in range(max(self._at, len(self._held) - longest), len(self._held)):
            if self._held[start:] in beginnings:
                return start
        return len(self._held)


SPACE = re.compile(r"\s+")
NOTHING = Content("")
"""An event that tells nothing; it is dropped."""


@functools.lru_cache(maxsize=256)
def _pattern(words: tuple[str, ...]) -> "re.Pattern[str]":
    return re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)))


@functools.lru_cache(maxsize=256)
def _beginnings(words: tuple[str, ...]) -> tuple[frozenset[str], int]:
    """Return what is a beginning of a word and no more, and the length of the longest."""
    found = frozenset(word[:length] for word in words for length in range(1, len(word)))
    return found, max(map(len, found), default=0)


class TextParser(ResponseParser):
    """A parser written as a reader of the whole text. Name it before `ToolParser` or `ReasoningParser` as a base."""

    def __init__(self, context: ResponseContext) -> None:
        super().__init__(context)
        self._text = GrowingText()
        self._reading: Reading[None] | None = None
        self.finish_reason: str | None = None

    @abstractmethod
    def read(self, text: GrowingText) -> Reading[None]:
        """Read the text and yield events. What is left unread when this returns is reported as content."""

    def push(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        """See `ResponseParser`."""
        if not text:
            return []
        self._text.append(text)
        return self._advance()

    def finish(self, finish_reason: str) -> list[Event]:
        """See `ResponseParser`."""
        self.finish_reason = finish_reason
        self._text.end()
        return self._advance()

    def _advance(self) -> list[Event]:
        if self._reading is None:
            self._reading = self._read_all()
        found: list[Event] = []
        for event in self._reading:
            if event is None:
                break
            found.append(event)
        return joined(found)

    def _read_all(self) -> Reading[None]:
        yield from self.read(self._text)
        yield from self._text.copy(Content)


def joined(events: Sequence[Event]) -> list[Event]:
    """Return the events with neighbours that go on with each other as one, and without those that tell nothing."""
    found: list[Event] = []
    pieces: list[str] = []

    def close() -> None:
        if len(pieces) > 1:
            found[-1] = _with_text(found[-1], "".join(pieces))
        pieces.clear()

    for event in events:
        if isinstance(event, CallStart):
            close()
            found.append(event)
        elif event.text:
            if not (pieces and _goes_on(found[-1], event)):
                close()
                found.append(event)
            pieces.append(event.text)
    close()
    return found


def _goes_on(last: Event, event: Event) -> bool:
    if isinstance(last, CallArguments) and isinstance(event, CallArguments):
        return last.index == event.index
    return type(last) is type(event)


def _with_text(event: Event, text: str) -> Event:
    if isinstance(event, CallArguments):
        return CallArguments(event.index, text)
    return Reasoning(text) if isinstance(event, Reasoning) else Content(text)
