"""`<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`: Qwen3-Coder.

Source: the chat template of Qwen3-Coder. Each tag stands on a line of its own.
"""

import re

from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.xml_calls import XMLParser

_NAME = re.compile(r"[^<>\s]+")


class Qwen3CoderToolParser(XMLParser):
    """Names stand behind an equals sign."""

    block = ("<tool_call>", "</tool_call>")
    function_start, function_end = "<function=", "</function>"
    argument_start, argument_end = "<parameter=", "</parameter>"
    on_own_lines = True

    def function(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`."""
        name = yield from text.take_while(_NAME)
        return name if (yield from text.accept(">")) else ""

    def argument(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`."""
        key = yield from text.take_while(_NAME)
        yield from text.accept(">")
        return key
