"""`<invoke name="NAME"><parameter name="KEY">value</parameter></invoke>` in `<dots_function_call>`: dots.

Source: rednote's tool call format of dots.llm2, as vLLM and SGLang document it: JSON objects may stand in the block
instead, and names without quotes.
"""

import re

from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.xml_calls import XMLParser

_NAME = re.compile(r"[^<>\n]+")


class DotsToolParser(XMLParser):
    """Names are attributes, quoted or not."""

    block = ("<dots_function_call>", "</dots_function_call>")
    function_start, function_end = "<invoke name=", "</invoke>"
    argument_start, argument_end = "<parameter name=", "</parameter>"
    has_json = True

    def function(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`."""
        name = (yield from text.take_while(_NAME)).strip().strip("\"'")
        return name if (yield from text.accept(">")) else ""

    def argument(self, text: GrowingText) -> Reading[tuple[str, bool | None]]:
        """See `XMLParser`."""
        return (yield from self.function(text)), None
