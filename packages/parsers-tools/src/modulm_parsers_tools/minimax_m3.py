"""`<invoke name="NAME"><KEY>value</KEY></invoke>` with `]<]minimax[>[` before each tag: MiniMax M3.

Source: the chat template of MiniMax-M3. An argument's tag is its name, and its value may hold elements again: an
object's members, or a list's items, written `<item>`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from modulm.interfaces.parsers import Content, Event
from modulm.interfaces.reading import NOTHING, GrowingText, Reading
from modulm_parsers_tools.schemas import as_value, resolved, types_of
from modulm_parsers_tools.xml_calls import XMLParser

_MARK = "]<]minimax[>["
_TAG = re.compile(r"[^<>\s]+")


class MiniMaxM3ToolParser(XMLParser):
    """Arguments that are strings are told as they come, all else once it is complete."""

    block = (f"{_MARK}<tool_call>", f"{_MARK}</tool_call>")
    function_start, function_end = f"{_MARK}<invoke name=", f"{_MARK}</invoke>"
    argument_start, argument_end = f"{_MARK}<", f"{_MARK}</"
    special_tokens = (_MARK,)
    signs = (_MARK,)

    def function(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`."""
        name = (yield from text.take_while(_TAG)).strip("\"'")
        return name if (yield from text.accept(">")) else ""

    def copy_elements(self, text: GrowingText, schema: Mapping[str, Any]) -> Reading[bool]:
        """See `XMLParser`."""
        found, before = "", "{"
        while True:
            if not found:
                yield from text.skip_space()
                found = yield from text.copy(Content, self.function_end, self.block[1], self.argument_start)
            if found != self.argument_start:
                yield self.arguments(("{}" if before == "{" else "}") if found else "")
                return found == self.function_end
            name = yield from self._tag(text)
            yield self.arguments(f"{before}{json.dumps(name, ensure_ascii=False)}: ")
            before = ", "
            own = resolved(resolved(schema.get("properties"), schema).get(name), schema)
            if types_of(own, schema) == {"string"}:
                yield self.arguments('"')
                found = yield from text.copy(self.in_string, f"{_MARK}</{name}>")
                yield self.arguments('"' if found else "")
            else:
                found = yield from self._copy_tree(text, _Element(name, own), schema)
            if not found:
                return False
            found = found if found in (self.function_end, self.block[1]) else ""

    def _copy_tree(self, text: GrowingText, root: "_Element", schema: Mapping[str, Any]) -> Reading[str]:
        """Report the value of an element that was opened; returns with what it ended, "" where the text was cut."""
        opened = [root]
        while True:
            innermost = opened[-1]
            marks = (self.function_end, self.block[1], self.argument_end, self.argument_start)
            found = yield from text.copy(innermost.keep, *marks)
            if not found:
                return ""
            if found == self.argument_start:
                name = yield from self._tag(text)
                opened.append(_Element(name, innermost.schema_of(name, schema)))
                continue
            tag = (yield from self._tag(text)) if found == self.argument_end else root.name
            names = [each.name for each in opened]
            while True:
                closed = opened.pop()
                value = closed.as_json(schema)
                if not opened:
                    yield self.arguments(value)
                    return found
                opened[-1].members.append((closed.name, value))
                if closed.name == tag or tag not in names:
                    break

    def _tag(self, text: GrowingText) -> Reading[str]:
        name = yield from text.take_while(_TAG)
        yield from text.accept(">")
        return name


class _Element:
    """An element that was opened: its text, and what is in it, in order, as JSON."""

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        self.name = name
        self.members: list[tuple[str, str]] = []
        self._schema = schema
        self._text: list[str] = []

    def keep(self, piece: str) -> Event:
        """Take more of the text."""
        self._text.append(piece)
        return NOTHING

    def schema_of(self, name: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the schema of a member."""
        said = resolved(self._schema.get("properties"), root).get(name)
        return resolved(said or self._schema.get("items") or self._schema.get("additionalProperties"), root)

    def as_json(self, root: Mapping[str, Any]) -> str:
        """Return the value; of members with one name a list, and text beside members as `$text`."""
        types, text = types_of(self._schema, root), "".join(self._text)
        if not self.members:
            if "string" not in types and types & {"array", "object"} and not text.strip():
                return "[]" if "array" in types else "{}"
            return as_value(text, types or frozenset(["string"]))
        if "array" in types or ("object" not in types and all(name == "item" for name, _ in self.members)):
            return "[" + ", ".join([value for _, value in self.members]) + "]"
        values: dict[str, list[str]] = {}
        for name, value in self.members:
            values.setdefault(name, []).append(value)
        if text.strip():
            values.setdefault("$text", []).append(json.dumps(text, ensure_ascii=False))
        lists = {name: each[0] if len(each) == 1 else f"[{', '.join(each)}]" for name, each in values.items()}
        members = [f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in lists.items()]
        return "{" + ", ".join(members) + "}"
