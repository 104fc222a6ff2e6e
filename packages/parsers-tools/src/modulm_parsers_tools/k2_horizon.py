"""As GLM's, in tags of its own and with all calls in `<ifm|tool_calls>`; or JSON in the same tags: K2 Horizon.

Source: the chat template of IFM's K2 Horizon, whose `tool_call_format` asks for `xml`, `xml_typed` (a value's type
stands before it in `<ifm|arg_type>`) or `json`. Which one a model writes shows in the text, so all are read.
"""

import re

from modulm.interfaces.parsers import Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.glm45 import GLM45ToolParser

_TYPE = re.compile(r"[^<]+")


class K2HorizonToolParser(GLM45ToolParser):
    """Reads what stands behind each `<ifm|tool_call>`."""

    block = ("<ifm|tool_calls>", "</ifm|tool_calls>")
    function_start, function_end = "<ifm|tool_call>", "</ifm|tool_call>"
    argument_start, argument_end = "<ifm|arg_key>", "</ifm|arg_value>"
    key_end, value_start = "</ifm|arg_key>", "<ifm|arg_value>"
    special_tokens = (
        *(*block, function_start, function_end, argument_start, argument_end, key_end, value_start),
        *("<ifm|arg_type>", "</ifm|arg_type>"),
    )

    def kind(self, text: GrowingText) -> Reading[bool | None]:
        """See `GLM45ToolParser`."""
        if not (yield from text.accept("<ifm|arg_type>")):
            return None
        kind = (yield from text.take_while(_TYPE)).strip().lower()
        yield from text.accept("</ifm|arg_type>")
        yield from text.skip_space()
        return None if kind in ("", "any") else kind == "string"

    def copy_element(self, text: GrowingText, read: str) -> Reading[bool]:
        """See `XMLParser`."""
        text.record()
        yield from text.skip_space()
        if not (yield from text.accept("{")):
            return (yield from super().copy_element(text, read + text.recorded()))
        if not (yield from self.copy_call(text, is_marked=True)):
            yield Content(read + text.recorded())
            return False
        text.recorded()
        yield from text.skip_space()
        return (yield from text.copy(Content, self.function_end, self.block[1])) == self.function_end
