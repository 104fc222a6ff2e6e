"""DeepSeek V3 and R1: a name and JSON between tokens.

Source: the chat templates of DeepSeek-V3-0324 and R1-0528, with `function` before the name and JSON fenced as code, and
of V3.1, with neither.
"""

import re

from modulm.interfaces.parsers import CallStart
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.sections import SectionParser

_SEPARATOR = "<｜tool▁sep｜>"
_NAME = re.compile(r"[\w.-]+")


class DeepSeekV3ToolParser(SectionParser):
    """Reads both ways of writing a call."""

    section = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    call = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
    special_tokens = (*section, *call, _SEPARATOR)

    def head(self, text: GrowingText) -> Reading[CallStart | None]:
        """See `SectionParser`."""
        name = yield from text.take_while(_NAME)
        if not (yield from text.accept(_SEPARATOR)):
            return None
        if (yield from text.peek()) != "{":
            name = yield from text.take_while(_NAME)
            yield from text.skip_space()
            yield from text.accept("```json", "```")
            yield from text.skip_space()
        is_call = name and (yield from text.peek()) == "{"
        return self.begin(name) if is_call else None

    def tail(self, text: GrowingText) -> Reading[None]:
        """See `SectionParser`."""
        yield from text.skip_space()
        yield from text.accept("```")
        yield from text.skip_space()
