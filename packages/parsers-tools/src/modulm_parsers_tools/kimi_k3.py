"""XTML, `<|open|>call tool="NAME" index="1"<|sep|>` with an element for each argument: Kimi K3.

Source: the chat template of Kimi-K3. Tags are written between three tokens. All calls are in `tools`, answers in
`response`; arguments may be one JSON object in `json`.
"""

import re
from collections.abc import Mapping
from typing import Any

from modulm.interfaces.parsers import Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.xml_calls import XMLParser

_OPEN, _CLOSE, _SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_HEAD = re.compile(r"[^<]+")


class KimiK3ToolParser(XMLParser):
    """Names, and the types of values, are attributes."""

    block = (f"{_OPEN}tools{_SEPARATOR}", f"{_CLOSE}tools{_SEPARATOR}")
    function_start, function_end = f"{_OPEN}call ", f"{_CLOSE}call{_SEPARATOR}"
    argument_start, argument_end = f"{_OPEN}argument ", f"{_CLOSE}argument{_SEPARATOR}"
    frames = (
        *(f"{_OPEN}response{_SEPARATOR}", f"{_CLOSE}response{_SEPARATOR}"),
        *(f"{_CLOSE}message{_SEPARATOR}", "<|end_of_msg|>"),
    )
    special_tokens = (_OPEN, _CLOSE, _SEPARATOR, "<|end_of_msg|>")
    signs = (_OPEN, _SEPARATOR)

    def function(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`."""
        return (yield from self._attributes(text)).get("tool", "")

    def argument(self, text: GrowingText) -> Reading[tuple[str, bool | None]]:
        """See `XMLParser`."""
        attributes = yield from self._attributes(text)
        kind = attributes.get("type")
        return attributes.get("key", ""), None if kind is None else kind == "string"

    def copy_elements(self, text: GrowingText, schema: Mapping[str, Any]) -> Reading[bool]:
        """See `XMLParser`."""
        yield from text.skip_space()
        if not (yield from text.accept(f"{_OPEN}json")):
            return (yield from super().copy_elements(text, schema))
        yield from self._attributes(text)
        yield from text.skip_space()
        yield from self.copy_arguments(text)
        yield from text.skip_space()
        yield from text.accept(f"{_CLOSE}json{_SEPARATOR}")
        found = yield from text.copy(Content, self.function_end, self.block[1])
        return found == self.function_end

    def _attributes(self, text: GrowingText) -> Reading[dict[str, str]]:
        head = yield from text.take_while(_HEAD)
        yield from text.accept(_SEPARATOR)
        return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(head)}
