"""Thinking before an answer, as grammars see it: a form waits for its end, and a budget writes it.

What ends the thinking is looked for in the bytes of tokens, since a model may cut it in any way, or run it together
with what follows. Knows neither parsers nor templates: `Thinking` (`types.py`) says what the front end found out.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from modulm.interfaces.structured import Grammar, Vocabulary
from modulm.types import Thinking


class Phase(IntEnum):
    """BEFORE the first words tell whether there will be thinking; CLOSING while the end is being written for it."""

    BEFORE = 0
    THINKING = 1
    CLOSING = 2
    ANSWER = 3


class _Place(NamedTuple):
    """How far a sequence has come.

    Attributes:
        matched: How many bytes of each end mark the text ends with.
        num_thought: Tokens of thinking.
        num_closed: Ids of the end mark that are there.
        begun: What there is of the response BEFORE it is clear what it is.
        is_direct: Whether the answer came without thinking.
        may_answer: Whether what has begun may be the answer.
    """

    phase: Phase
    matched: tuple[int, ...]
    num_thought: int = 0
    num_closed: int = 0
    begun: tuple[int, ...] = ()
    is_direct: bool = False
    may_answer: bool = True


class _EndMark:
    """A text that ends the thinking, followed byte by byte (Knuth, Morris and Pratt's method)."""

    def __init__(self, text: bytes, vocabulary: Vocabulary) -> None:
        self.text = text
        self._fallback = [0] * (len(text) + 1)
        matched = 0
        for length in range(1, len(text)):
            matched = self._next(matched, text[length])
            self._fallback[length + 1] = matched
        last = text[-1:]
        self._longer = [i for i, piece in enumerate(vocabulary.tokens) if 0 <= piece.find(last) < len(piece) - 1]

    def _next(self, matched: int, byte: int) -> int:
        while matched and self.text[matched] != byte:
            matched = self._fallback[matched]
        return matched + (self.text[matched] == byte)

    def follow(self, matched: int, piece: bytes) -> tuple[int, bytes]:
        """Return how much is matched after more text, and what of it comes after the whole mark."""
        for at, byte in enumerate(piece):
            matched = self._next(matched, byte)
            if matched == len(self.text):
                return matched, piece[at + 1 :]
        return matched, b""

    def overrun_by(self, matched: int, tokens: Sequence[bytes]) -> list[int]:
        """Return the tokens that would complete the mark and go on."""
        return [token for token in self._longer if self.follow(matched, tokens[token])[1]]


class Marks:
    """Marks around the thinking in one vocabulary; kept for requests that have the same."""

    def __init__(self, thinking: Thinking, vocabulary: Vocabulary) -> None:
        self.start, self.end_ids = thinking.start, thinking.ends[0].token_ids
        self.num_words = vocabulary.num_words
        self.ends = [_EndMark(mark.text, vocabulary) for mark in thinking.ends]
        self._shown = thinking.shown
        self._vocabulary = vocabulary
        self._masks: dict[tuple[int, ...], np.ndarray] = {}

    def begun_by(self, ids: tuple[int, ...]) -> list[list[int]]:
        """Return the marks' ids that begin so, and go on."""
        marks = (self.start.token_ids, self.end_ids)
        return [mark for mark in marks if len(mark) > len(ids) and tuple(mark[: len(ids)]) == ids]

    def piece(self, token: int) -> bytes:
        """Return what a token adds to the text as parsers see it."""
        tokens = self._vocabulary.tokens
        return self._shown.get(token) or (tokens[token] if token < len(tokens) else b"")

    def before_form(self, matched: tuple[int, ...]) -> np.ndarray:
        """Return what may come while a form waits: no end of the output, no mark that runs into the answer."""
        if matched not in self._masks:
            mask = np.full(self.num_words, 0xFFFFFFFF, dtype=np.uint32)
            barred = [*self._vocabulary.eos_token_ids]
            for end, count in zip(self.ends, matched, strict=True):
                barred += end.overrun_by(count, self._vocabulary.tokens)
            for token in barred:
                mask[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
            self._masks[matched] = mask
        return self._masks[matched]

    def num_written(self, matched: int) -> int:
        """Return how many ids of the end mark have been written, of whose text so much is there; 0 if cut otherwise."""
        length = 0
        for count, token in enumerate(self.end_ids):
            if length == matched:
                return count
            length += len(self.piece(token))
        return 0


class ThinkingGrammar(Grammar):
    """Lets thinking pass, up to its budget; from its end on the answer's form holds, if it must have one.

    Args:
        start: Makes the form's state at its beginning; None for answers of any form.
    """

    def __init__(self, thinking: Thinking, marks: Marks, start: Callable[[], Grammar] | None) -> None:
        self._marks = marks
        self._budget = thinking.budget
        self._form = start and start()
        self._direct = start() if start is not None and not thinking.begun else None
        """For the answer that comes without thinking."""
        nothing = (0,) * len(marks.ends)
        self._place = self._thought(nothing, 0) if thinking.begun else _Place(Phase.BEFORE, nothing)
        self._past: list[tuple[_Place, Grammar | None]] = []
        """Where each token was taken, and the form that took it."""

    def fill(self, mask: np.ndarray) -> None:
        """See `Grammar`."""
        place, form = self._place, self._answering()
        if place.phase is Phase.CLOSING:
            mask.fill(0)
            _allow(mask, self._marks.end_ids[place.num_closed])
        elif form is None:
            mask.fill(0xFFFFFFFF)
        elif place.phase is Phase.THINKING:
            np.copyto(mask, self._marks.before_form(place.matched))
        else:
            mask.fill(0)
            if place.may_answer:
                form.fill(mask)
            for ids in self._marks.begun_by(place.begun) if place.phase is Phase.BEFORE else ():
                _allow(mask, ids[len(place.begun)])

    def accept(self, token_ids: Sequence[int]) -> bool:
        """See `Grammar`."""
        for token in token_ids:
            before, taken = self._place, None
            if before.phase is Phase.BEFORE:
                after, taken = (self._begin if self._direct is None else self._begin_in_form)(before, token)
            elif before.phase is Phase.THINKING:
                after = self._think(before, self._marks.piece(token))
            elif before.phase is Phase.CLOSING:
                after = self._close(before, token)
            else:
                taken = self._answering()
                after = before if taken is None or taken.accept([token]) else None
            if after is None:
                return False
            self._place = after
            self._past.append((before, taken))
        return True

    def rollback(self, num_tokens: int) -> None:
        """See `Grammar`."""
        if num_tokens > len(self._past):
            raise ValueError(f"{num_tokens} tokens cannot be taken back: {len(self._past)} have come")
        for _ in range(num_tokens):
            self._place, form = self._past.pop()
            if form is not None:
                form.rollback(1)

    def forced(self) -> list[int]:
        """See `Grammar`."""
        if self._place.phase is Phase.CLOSING:
            return list(self._marks.end_ids[self._place.num_closed :])
        form = self._answering()
        return form.forced() if form is not None and self._place.phase is Phase.ANSWER else []

    @property
    def is_terminated(self) -> bool:
        """See `Grammar`."""
        form = self._answering()
        return form is not None and self._place.phase is Phase.ANSWER and form.is_terminated

    def _answering(self) -> Grammar | None:
        place = self._place
        return self._direct if place.is_direct or place.phase is Phase.BEFORE else self._form

    def _thought(self, matched: tuple[int, ...], num_thought: int) -> _Place:
        """Return the place inside the thinking; at the budget its end begins, or goes on."""
        if self._budget is None or num_thought < self._budget:
            return _Place(Phase.THINKING, matched, num_thought)
        return _Place(Phase.CLOSING, matched, num_thought, self._marks.num_written(matched[0]))

    def _close(self, place: _Place, token: int) -> _Place | None:
        ids = self._marks.end_ids
        if token != ids[place.num_closed]:
            return None
        place = place._replace(num_closed=place.num_closed + 1)
        return place if place.num_closed < len(ids) else place._replace(phase=Phase.ANSWER)

    def _think(self, place: _Place, piece: bytes, num_tokens: int = 1) -> _Place | None:
        followed = [end.follow(at, piece) for end, at in zip(self._marks.ends, place.matched, strict=True)]
        matched = tuple([count for count, _ in followed])
        for end, (count, rest) in zip(self._marks.ends, followed, strict=True):
            if count == len(end.text):
                return None if rest and self._form is not None else place._replace(phase=Phase.ANSWER)
        return self._thought(matched, place.num_thought + num_tokens)

    def _begin(self, place: _Place, token: int) -> tuple[_Place | None, None]:
        """Return the place after one of the first tokens; they may be cut in any way, and have space before them."""
        begun = (*place.begun, token)
        text = b"".join([self._marks.piece(each) for each in begun]).lstrip()
        start, ends = self._marks.start.text, [end.text for end in self._marks.ends]
        if text.startswith(start):
            return self._think(self._thought(place.matched, 0), text[len(start) :], num_tokens=0), None
        if any(mark.startswith(text) and mark != text for mark in (start, *ends)):
            return place._replace(begun=begun), None
        return place._replace(phase=Phase.ANSWER), None

    def _begin_in_form(self, place: _Place, token: int) -> tuple[_Place | None, Grammar | None]:
        """Return the place after one of the first tokens, and the form that took it too: what the mask allows."""
        form, begun = self._direct, (*place.begun, token)
        assert form is not None
        may_answer = place.may_answer and _allows(form, token, self._marks.num_words) and form.accept([token])
        taken = form if may_answer else None
        if begun == tuple(self._marks.start.token_ids):
            return self._thought(place.matched, 0), taken
        if begun == tuple(self._marks.end_ids):
            return place._replace(phase=Phase.ANSWER, may_answer=True), taken
        if self._marks.begun_by(begun):
            return place._replace(begun=begun, may_answer=may_answer), taken
        return (place._replace(phase=Phase.ANSWER, is_direct=True) if may_answer else None), taken


def _allow(mask: np.ndarray, token: int) -> None:
    mask[token // 32] |= np.uint32(1 << token % 32)


def is_allowed(mask: np.ndarray, token: int) -> bool:
    """Say whether a mask allows a token. To be asked before a token that may be refused is told to a grammar.

    A grammar that has refused one need not be the same as before.
    """
    return bool(token // 32 < len(mask) and int(mask[token // 32]) >> token % 32 & 1)


def _allows(form: Grammar, token: int, num_words: int) -> bool:
    mask = np.zeros(num_words, dtype=np.uint32)
    form.fill(mask)
    return is_allowed(mask, token)
