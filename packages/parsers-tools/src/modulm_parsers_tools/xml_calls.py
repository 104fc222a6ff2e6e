"""Tool calls written as tags, with an element for each argument: what formats of this kind have in common.

An argument's schema says what its text means: strings are told as they come, all else once it is complete. An argument
without a type is a string. Knows no tag.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from modulm.interfaces.parsers import Content, Event
from modulm.interfaces.reading import NOTHING, GrowingText, Reading
from modulm_parsers_tools.json_calls import CallParser
from modulm_parsers_tools.schemas import as_value, types_of

_NAME = re.compile(r'[^<>"\s]+')


class XMLParser(CallParser):
    """Reads `block[0] (FUNCTION (ARGUMENT value argument_end)* function_end)* block[1]`.

    Ends that models leave out are taken for given where something comes that can only stand behind them.
    Some formats let a block hold JSON objects instead.

    Attributes:
        block: What stands before and behind all calls; "" where nothing does.
        function_start, function_end: The same of one; "" where the block is one call.
        argument_start, argument_end: What stands before an argument's name and behind its value.
        name_end: What stands behind both names.
        on_own_lines: Whether a value has a line break before and behind it that is not its own.
        has_json: Whether a block may hold JSON objects.
        entities: What stands for other characters in values.
        literal: What may stand around a value in which nothing stands for anything else.
    """

    block: tuple[str, str]
    function_start: str = ""
    function_end: str = ""
    argument_start: str
    argument_end: str
    name_end: ClassVar[str] = ">"
    on_own_lines: ClassVar[bool] = False
    has_json: ClassVar[bool] = False
    entities: ClassVar[Mapping[str, str]] = {}
    literal: ClassVar[tuple[str, str]] = ("", "")

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.signs = cls.__dict__.get("signs", (cls.block[0], cls.argument_start))

    def function(self, text: GrowingText) -> Reading[str]:
        """Read what is behind `function_start`; return the function's name, "" if this is no call."""
        name = yield from text.take_while(_NAME)
        return name if (yield from text.accept(self.name_end)) else ""

    def argument(self, text: GrowingText) -> Reading[tuple[str, bool | None]]:
        """Read what is between `argument_start` and the value.

        Returns the argument's name, and whether it is a string: None where only its schema can tell.
        """
        key = yield from text.take_while(_NAME)
        yield from text.accept(self.name_end)
        return key, None

    def close(self, text: GrowingText) -> Reading[None]:
        """Read what stands behind `function_end` and is no content."""
        yield from ()

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        while found := (yield from self.copy_content(text, *_words(self.block[0], self.function_start))):
            yield from self.copy_block(text, found)

    def copy_block(self, text: GrowingText, found: str, before: str = "") -> Reading[None]:
        """Report the calls behind `found`, the beginning of a block or of a call.

        If there is none, it is content, and so is what was read `before`.
        """
        text.record()
        is_open = found == self.function_start or not self.function_start
        if not is_open:
            yield from text.skip_space()
            if self.has_json and (yield from text.peek()) in ("{", "["):
                yield from self.copy_marked(text, before + found + text.recorded(), (self.block[1],), ())
                return
            is_open = bool((yield from text.accept(self.function_start)))
        read = before + found + text.recorded()
        while is_open:
            if not (yield from self.copy_element(text, read)):
                return
            text.record()
            yield from text.skip_space()
            ends = bool((yield from text.accept(self.block[1])))
            is_open = not ends and bool((yield from text.accept(self.function_start)))
            read = "" if ends else text.recorded()
        yield Content(read)

    def copy_element(self, text: GrowingText, read: str) -> Reading[bool]:
        """Report the call behind `function_start`; returns whether another may follow in the block.

        If this is no call, `read` and what is read here is content.
        """
        text.record()
        name = yield from self.function(text)
        read += text.recorded()
        if not name:
            yield Content(read)
            return False
        yield self.begin(name)
        follows = yield from self.copy_elements(text, self.context.parameters(name) or {})
        if follows:
            yield from self.close(text)
        return follows

    def copy_elements(self, text: GrowingText, schema: Mapping[str, Any]) -> Reading[bool]:
        """Report the arguments of a call; returns whether another call may follow in the block."""
        ends = _words(self.function_end, self.block[1])
        properties = schema.get("properties")
        found, before = "", "{"
        while True:
            if not found:
                yield from text.skip_space()
                found = yield from text.accept(self.argument_start, *ends)
            if found in ends:
                yield self.arguments("{}" if before == "{" else "}")
                return found == self.function_end
            if found:
                key, is_string = yield from self.argument(text)
                yield self.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
                before = ", "
                types = _STRING if is_string else frozenset[str]()
                if is_string is None:
                    kind = properties.get(key) if isinstance(properties, Mapping) else None
                    types = types_of(kind, schema) or _STRING
                found = yield from self._value(text, types)
                if not found:
                    return False
                found = found if found != self.argument_end else ""
            elif not (found := (yield from text.copy(Content, self.argument_start, *ends))):
                return False

    def in_string(self, piece: str) -> Event:
        """Return more of a string in the arguments."""
        return self.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])

    def _value(self, text: GrowingText, types: frozenset[str]) -> Reading[str]:
        """Report a value; returns what it ended with, "" where the text was cut."""
        ends = all_ends = _words(self.argument_end, self.argument_start, self.function_end, self.block[1])
        entities = self.entities
        if self.on_own_lines:
            yield from text.accept("\n")
            ends += ("\n" + self.argument_end,)
        if self.literal[0] and (yield from text.accept(self.literal[0])):
            ends, entities = tuple(self.literal[1] + space + self.argument_end for space in ("", "\n")), {}
        if types == _STRING_OR_NULL and (found := (yield from text.accept(*["null" + end for end in ends]))):
            yield self.arguments("null")
            return next(end for end in all_ends if found.endswith(end))
        is_string = types in (_STRING, _STRING_OR_NULL)
        pieces: list[str] = []

        def keep(piece: str) -> Event:
            pieces.append(piece)
            return NOTHING

        if is_string:
            yield self.arguments('"')
        make = self.in_string if is_string else keep
        while (found := (yield from text.copy(make, *ends, *entities))) in entities:
            yield make(entities[found])
        if found:
            yield self.arguments('"' if is_string else as_value("".join(pieces), types))
        return next((end for end in all_ends if found.endswith(end)), "")


_STRING = frozenset(["string"])
_STRING_OR_NULL = frozenset(["string", "null"])


def _words(*words: str) -> tuple[str, ...]:
    return tuple(word for word in words if word)
