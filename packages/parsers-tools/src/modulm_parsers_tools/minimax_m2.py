"""`<invoke name="NAME"><parameter name="KEY">value</parameter></invoke>` in `<minimax:tool_call>`: MiniMax M2.

Source: MiniMax's tool calling guides for M2 and M2.5.
"""

import re

from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.xml_calls import XMLParser

_NAME = re.compile(r'[^<>"\s]+')


class MiniMaxM2ToolParser(XMLParser):
    """Names are attributes."""

    block = ("<minimax:tool_call>", "</minimax:tool_call>")
    function_start, function_end = '<invoke name="', "</invoke>"
    argument_start, argument_end = '<parameter name="', "</parameter>"

    def function(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`."""
        name = yield from text.take_while(_NAME)
        return name if (yield from text.accept('">')) else ""

    def argument(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`."""
        key = yield from text.take_while(_NAME)
        yield from text.accept('">')
        return key
