"""A response made of blocks, each with a header that says what it is: what formats with channels have in common.

Blocks of calls are left as they are, header and all, for the tool parser; so are those that nobody knows.
"""

import re
from abc import abstractmethod
from typing import ClassVar

from modulm.interfaces.parsers import Content, ReasoningParser, TokenizerView
from modulm.interfaces.reading import GrowingText, Make, Reading, TextParser
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_parsers_reasoning.turn import last_mark


class BlockReasoningParser(TextParser, ReasoningParser):
    """Reads block after block. A subclass names the marks.

    Attributes:
        turn: What the prompt ends in where the response begins with a header.
        leads: Marks with which a header begins; `bare_leads` only where the response begins.
        within, header: Marks in a header, and its other characters, one repeated.
        opens, closes: Marks that end a header, and those that end a block.
        sign: What the chat template has for which the format is chosen by itself.
    """

    turn: ClassVar[str]
    leads: ClassVar[tuple[str, ...]]
    bare_leads: ClassVar[tuple[str, ...]] = ()
    within: ClassVar[tuple[str, ...]] = ()
    header: ClassVar["re.Pattern[str]"]
    opens: ClassVar[tuple[str, ...]]
    closes: ClassVar[tuple[str, ...]]
    sign: ClassVar[str]

    @abstractmethod
    def kind(self, header: str) -> Make | None:
        """Return what a block with this header reports, `Reasoning` or `Content`; None for calls and the unknown."""

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        if cls.sign not in chat_template:
            return Rejected(f"the chat template has no {cls.sign}")
        return Accepted(f"the chat template has {cls.sign}")

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`. What stands between blocks is content."""
        begun = self._begun()
        make, is_call, found = Content if begun is None else begun[0] or Content, begun == (None,), ""
        if begun is None:
            found = yield from text.accept(*self.leads, *self.bare_leads)
        begins = bool(found) or (begun is None and "" in self.bare_leads)
        while True:
            if begins:
                written, is_header = yield from self._header(text, found)
                if is_header:
                    kind = self.kind(written)
                    make, is_call = kind or Content, kind is None
                if is_call or not is_header:
                    yield make(written)
            elif found:
                if is_call:
                    yield Content(found)
                make, is_call = Content, False
            found = yield from text.copy(make, *self.closes, *self.leads)
            begins = found in self.leads
            if not found:
                return

    def _header(self, text: GrowingText, lead: str) -> Reading[tuple[str, bool]]:
        """Return a header that begins with the lead, and whether it is one."""
        text.record()
        found = lead
        while found not in self.opens:
            yield from text.take_while(self.header)
            found = yield from text.accept(*self.within, *self.opens)
            if not found:
                break
        return lead + text.recorded(), bool(found)

    def _begun(self) -> tuple[Make | None] | None:
        """Return the kind of the block that the prompt leaves open; None if it leaves none."""
        prompt = self.context.prompt
        last = last_mark(prompt, (*self.opens, *self.closes))
        if last not in self.opens:
            return None
        return (self.kind(prompt[prompt.rfind(self.turn) : prompt.rfind(last) + len(last)]),)
