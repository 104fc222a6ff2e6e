"""Thinking between two tags at the beginning of the response; what formats with tags have in common.

A chat template may have written the first tag already, or both to say that there shall be no thinking: the end of the
prompt tells. Knows no model.
"""

from typing import ClassVar

from modulm.interfaces.parsers import Content, Reasoning, ReasoningParser, TokenizerView
from modulm.interfaces.reading import GrowingText, Reading, TextParser
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_parsers_reasoning.turn import last_mark

SPECIFIC = (
    "<|tool_calls_section_begin|>", "<minimax:tool_call>", "｜DSML｜", "<response>", "<answer>",
    "<|im_start|>tool_response", "truncate_history_thinking",
)  # fmt: skip
"""What templates with `</think>` have whose formats have a file of their own: others must not be chosen for them."""


class TaggedReasoningParser(TextParser, ReasoningParser):
    """Reads up to the end tag. A subclass names the tags.

    Attributes:
        starts_open: Whether a response begins with thinking where neither prompt, request nor start tag tells.
        switches: What templates call the switch of thinking.
        also_end: Words that end the thinking too and belong to the answer, if there are tools: some models call tools
            without an end tag.
        thinks_again: Whether thinking may begin anew in the answer.
        dropped: Marks around the answer, which are nobody's text.
        signs, foreign: What the chat templates have, and have not, for which the format is chosen by itself.
    """

    start_marker: ClassVar[str]
    end_marker: ClassVar[str]
    starts_open: ClassVar[bool] = False
    switches: ClassVar[tuple[str, ...]] = ("enable_thinking", "thinking")
    also_end: ClassVar[tuple[str, ...]] = ()
    thinks_again: ClassVar[bool] = False
    dropped: ClassVar[tuple[str, ...]] = ()
    signs: ClassVar[tuple[str, ...]] = ()
    foreign: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        signs = cls.signs or (cls.end_marker,)
        for sign in signs:
            if sign not in chat_template:
                return Rejected(f"the chat template has no {sign}")
        for sign in cls.foreign:
            if sign in chat_template:
                return Rejected(f"the chat template has {sign}")
        return Accepted(f"the chat template has {' and '.join(signs)}")

    def pairs(self) -> dict[str, str]:
        """Return end tags by start tags; the first is the usual one."""
        return {self.start_marker: self.end_marker}

    def marks(self) -> tuple[str | None, tuple[str, ...]]:
        """See `ReasoningParser`."""
        start, end = next(iter(self.pairs().items()))
        return start, self.end_markers() if start == self.start_marker else (end,)

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`. A tag counts wherever it was expected, so none is ever content there."""
        pairs, start = self.pairs(), self.opened()
        space = yield from text.skip_space()
        found = yield from text.accept(*pairs, *pairs.values())
        if found:
            start = found if found in pairs else None
        elif start is None:
            yield Content(space)
        else:
            yield Reasoning(space)
        if start is None:
            found = yield from self._answer(text)
        else:
            found = yield from self._thinking(text, pairs[start])
        while found:
            found = yield from self._thinking(text, pairs[found])

    def opened(self) -> str | None:
        """Return the start tag with which thinking is under way before the response begins; None if it is not."""
        pairs = self.pairs()
        last = last_mark(self.context.prompt, (*pairs, *pairs.values()))
        if last is not None:
            return last if last in pairs else None
        return next(iter(pairs)) if self.starts_open and not self.is_off() else None

    def is_off(self) -> bool:
        """Whether the request has switched thinking off."""
        said = [self.context.template_kwargs.get(switch) for switch in self.switches]
        return any(word is not None for word in said) and not any(said)

    def _thinking(self, text: GrowingText, end: str) -> Reading[str]:
        also = self.also_end if self.context.tools else ()
        found = yield from text.copy(Reasoning, end, *also)
        if not found:
            return ""
        if found in also:
            yield Content(found)
        return (yield from self._answer(text))

    def _answer(self, text: GrowingText) -> Reading[str]:
        """Return the start tag with which thinking begins anew, or ""."""
        pairs = self.pairs() if self.thinks_again else {}
        if not pairs and not self.dropped:
            return ""
        while True:
            found = yield from text.copy(Content, *pairs, *pairs.values(), *self.dropped)
            if not found or found in pairs:
                return found
