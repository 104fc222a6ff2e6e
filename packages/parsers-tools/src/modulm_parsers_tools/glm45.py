"""`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>`: GLM 4.5 to 4.7.

Source: the chat templates of GLM-4.5, which writes each tag on a line of its own, and GLM-4.7, which does not.
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

    def function(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`."""
        yield from text.skip_space()
        name = yield from text.take_while(_NAME)
        yield from text.skip_space()
        ahead = yield from text.peek(2)
        mark = self.block[1] if ahead == "</" else self.argument_start
        return name if (yield from text.peek(len(mark))) == mark else ""

    def argument(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`."""
        key = yield from text.take_while(_KEY)
        yield from text.accept("</arg_key>")
        yield from text.skip_space()
        yield from text.accept("<arg_value>")
        return key.strip()
