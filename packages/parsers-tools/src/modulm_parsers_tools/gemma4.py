"""`call:NAME{KEY:<|"|>value<|"|>,KEY:1}` between tokens: Gemma 4, and FunctionGemma with other tokens.

Source: the chat templates of Gemma 4, with `<|tool_call>` and `<tool_call|>`, and of functiongemma-270m-it, with
`<start_function_call>`, `<end_function_call>` and `<escape>` around strings; and Google's pages on both. Keys are
bare, or quoted in the same way.
"""

import re
from typing import ClassVar

from modulm.interfaces.parsers import Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.json_calls import CallParser
from modulm_parsers_tools.json_text import copy_value

_NAME = re.compile(r"[^\s{(<]+")


class Gemma4ToolParser(CallParser):
    """Reads what is behind each mark.

    Attributes:
        start, end, quote: What stands before and behind a call, and around strings.
    """

    start: ClassVar[str] = "<|tool_call>"
    end: ClassVar[str] = "<tool_call|>"
    quote: ClassVar[str] = '<|"|>'
    special_tokens = (start, end, quote)
    signs = (start,)

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        while (yield from text.copy(Content, self.start)):
            text.record()
            yield from text.skip_space()
            yield from text.accept("call:", ":")
            name = yield from text.take_while(_NAME)
            yield from text.skip_space()
            if not name or (yield from text.peek()) != "{":
                yield Content(self.start + text.recorded())
                continue
            yield self.begin(name)
            yield from copy_value(text, self.arguments, self.quote)
            text.record()
            yield from text.skip_space()
            if not (yield from text.accept(self.end)):
                yield Content(text.recorded())


class FunctionGemmaToolParser(Gemma4ToolParser):
    """Has other tokens."""

    start, end, quote = "<start_function_call>", "<end_function_call>", "<escape>"
    special_tokens = (start, end, quote)
    signs = (start,)
