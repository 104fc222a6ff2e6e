"""`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>`: GLM 4.5 to 5, Ling 3, Laguna.

Source: the chat templates of GLM-4.5, which writes each tag on a line of its own, and GLM-4.7, which does not; those of
Ling 3 and Poolside's Laguna are alike.
"""

import re

from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.xml_calls import XMLParser

_NAME = re.compile(r"[^\s<{]+")
_KEY = re.compile(r"[^<]+")


class GLM45ToolParser(XMLParser):
    """A block is one call, which begins with its name."""

    block = ("<tool_call>", "</tool_call>")
    argument_start, argument_end = "<arg_key>", "</arg_value>"
    key_end, value_start = "</arg_key>", "<arg_value>"
    separator = ""
    """What may stand behind a name."""

    def function(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`."""
        yield from text.skip_space()
        name = yield from text.take_while(_NAME)
        if name and (yield from text.accept(self.separator)):
            return name
        yield from text.skip_space()
        ahead = yield from text.peek(2)
        mark = (self.function_end or self.block[1]) if ahead == "</" else self.argument_start
        return name if (yield from text.peek(len(mark))) == mark else ""

    def argument(self, text: GrowingText) -> Reading[tuple[str, bool | None]]:
        """See `XMLParser`."""
        key = yield from text.take_while(_KEY)
        yield from text.accept(self.key_end)
        yield from text.skip_space()
        is_string = yield from self.kind(text)
        yield from text.accept(self.value_start)
        return key.strip(), is_string

    def kind(self, text: GrowingText) -> Reading[bool | None]:
        """Read what may stand before the value; return whether it says that this is a string, None if it is silent."""
        yield from ()
        return None
