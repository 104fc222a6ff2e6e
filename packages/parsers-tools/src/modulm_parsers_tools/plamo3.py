"""A name and JSON, each between marks of its own: PFN's PLaMo 3.

Source: the chat template of PLaMo 3. A mark such as `<|plamo:begin_tool_name:plamo|>` is several tokens, the first
and the last of which are special. Between `begin_tool_arguments` and the JSON stands what constrains it.
"""

import re

from modulm.interfaces.parsers import CallStart
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.sections import SectionParser

_CONSTRAIN, _MESSAGE = "<|plamo:constrain|>", "<|plamo:msg|>"
_NAME = re.compile(r"[^<]+")


def _marks(name: str) -> tuple[str, str]:
    return f"<|plamo:begin_{name}:plamo|>", f"<|plamo:end_{name}:plamo|>"


class Plamo3ToolParser(SectionParser):
    """Reads the marks in order."""

    section, call = _marks("tool_requests"), _marks("tool_request")
    special_tokens = ("<|plamo:begin_", "<|plamo:end_", ":plamo|>", _CONSTRAIN, _MESSAGE)

    def head(self, text: GrowingText) -> Reading[CallStart | None]:
        """See `SectionParser`."""
        name_start, name_end = _marks("tool_name")
        yield from text.skip_space()
        if not (yield from text.accept(name_start)):
            return None
        name = yield from text.take_while(_NAME)
        yield from text.accept(name_end)
        yield from text.skip_space()
        yield from text.accept(_marks("tool_arguments")[0])
        yield from text.accept(_CONSTRAIN + "json")
        yield from text.accept(_MESSAGE)
        yield from text.skip_space()
        is_call = name.strip() and (yield from text.peek()) == "{"
        return self.begin(name.strip()) if is_call else None

    def tail(self, text: GrowingText) -> Reading[None]:
        """See `SectionParser`."""
        yield from text.skip_space()
        yield from text.accept(_marks("tool_arguments")[1])
        yield from text.skip_space()
