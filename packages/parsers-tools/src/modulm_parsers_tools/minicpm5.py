"""`<function name="NAME"><param name="KEY">value</param></function>`: MiniCPM 5.

Source: the chat template of MiniCPM5. It is XML: values stand in CDATA, or with entities. The tags' beginnings are
tokens, behind which the space gets lost.
"""

import re

from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.xml_calls import XMLParser

_NAME = re.compile(r"""[^"'<>]+""")


class MiniCPM5ToolParser(XMLParser):
    """Nothing stands around calls."""

    block = ("", "")
    function_start, function_end = "<function", "</function>"
    argument_start, argument_end = "<param", "</param>"
    entities = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&amp;": "&"}
    literal = ("<![CDATA[", "]]>")
    special_tokens = (function_start, function_end, argument_start, argument_end, *literal)
    signs = ("<function name=", "<param name=")

    def function(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`."""
        yield from text.skip_space()
        if not (yield from text.accept('name="', "name='")):
            return ""
        name = yield from text.take_while(_NAME)
        return name.strip() if (yield from text.accept('">', "'>")) else ""

    def argument(self, text: GrowingText) -> Reading[tuple[str, bool | None]]:
        """See `XMLParser`."""
        return (yield from self.function(text)), None
