"""Kimi K2: `functions.NAME:INDEX`, which is also the call's id, and JSON between tokens.

Source: MoonshotAI's tool call guidance for Kimi-K2, and its chat template.
"""

import re

from modulm.interfaces.parsers import CallStart
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.sections import SectionParser

_ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"[\w.:-]+")


class KimiK2ToolParser(SectionParser):
    """Tells ids as the model writes them: its template wants them back so."""

    section = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    call = ("<|tool_call_begin|>", "<|tool_call_end|>")
    special_tokens = (*section, *call, _ARGUMENTS)

    def head(self, text: GrowingText) -> Reading[CallStart | None]:
        """See `SectionParser`."""
        yield from text.skip_space()
        call_id = yield from text.take_while(_ID)
        yield from text.skip_space()
        yield from text.accept(_ARGUMENTS)
        yield from text.skip_space()
        name = call_id.removeprefix("functions.").partition(":")[0]
        is_call = name and (yield from text.peek()) == "{"
        return self.begin(name, call_id) if is_call else None
