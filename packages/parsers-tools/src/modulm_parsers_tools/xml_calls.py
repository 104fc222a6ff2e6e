"""Tool calls written as tags, with an element for each argument: what formats of this kind have in common.

An argument's schema says what its text means: strings are told as they come, all else once it is complete. An argument
without a type is a string. Knows no tag.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from modulm.interfaces.parsers import Content, Event, TokenizerView
from modulm.interfaces.reading import NOTHING, GrowingText, Reading
from modulm.interfaces.support import Support
from modulm_parsers_tools.json_calls import CallParser, match_mark
from modulm_parsers_tools.python_text import as_json

_NAME = re.compile(r'[^<>"\s]+')


class XMLParser(CallParser):
    """Reads `block[0] (FUNCTION (ARGUMENT value argument_end)* function_end)* block[1]`.

    Ends that models leave out are taken for given where something comes that can only stand behind them.

    Attributes:
        block: What stands before and behind all calls.
        function_start, function_end: The same of one; "" where the block is one call.
        argument_start, argument_end: What stands before an argument's name and behind its value.
        name_end: What stands behind both names.
        on_own_lines: Whether a value has a line break before and behind it that is not its own.
    """

    block: ClassVar[tuple[str, str]]
    function_start: ClassVar[str] = ""
    function_end: ClassVar[str] = ""
    argument_start: ClassVar[str]
    argument_end: ClassVar[str]
    name_end: ClassVar[str] = ">"
    on_own_lines: ClassVar[bool] = False

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        return match_mark(chat_template, cls.block[0]) and match_mark(chat_template, cls.argument_start)

    def function(self, text: GrowingText) -> Reading[str]:
        """Read what is behind `function_start`; return the function's name, "" if this is no call."""
        name = yield from text.take_while(_NAME)
        return name if (yield from text.accept(self.name_end)) else ""

    def argument(self, text: GrowingText) -> Reading[str]:
        """Read what is between `argument_start` and the value; return the argument's name."""
        key = yield from text.take_while(_NAME)
        yield from text.accept(self.name_end)
        return key

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        starts = _words(self.block[0], self.function_start)
        while found := (yield from text.copy(Content, *starts)):
            text.record()
            is_open = found == self.function_start or not self.function_start
            if not is_open:
                yield from text.skip_space()
                is_open = bool((yield from text.accept(self.function_start)))
            read = found + text.recorded()
            while is_open:
                text.record()
                name = yield from self.function(text)
                read += text.recorded()
                if not name:
                    break
                yield self.begin(name)
                read = ""
                if not (yield from self._arguments(text, self.context.parameters(name) or {})):
                    break
                text.record()
                yield from text.skip_space()
                ends = bool((yield from text.accept(self.block[1])))
                is_open = not ends and bool((yield from text.accept(self.function_start)))
                read = "" if ends else text.recorded()
            yield Content(read)

    def _arguments(self, text: GrowingText, schema: Mapping[str, Any]) -> Reading[bool]:
        """Report the arguments; returns whether another call may follow in the block."""
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
                key = yield from self.argument(text)
                yield self.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
                before = ", "
                kind = properties.get(key) if isinstance(properties, Mapping) else None
                found = yield from self._value(text, is_string=_may_be_string(kind))
                if not found:
                    return False
                found = found if found != self.argument_end else ""
            elif not (found := (yield from text.copy(Content, self.argument_start, *ends))):
                return False

    def _value(self, text: GrowingText, *, is_string: bool) -> Reading[str]:
        """Report a value; returns what it ended with, "" where the text was cut."""
        ends = _words(self.argument_end, self.argument_start, self.function_end, self.block[1])
        if self.on_own_lines:
            yield from text.accept("\n")
            ends += ("\n" + self.argument_end,)
        pieces: list[str] = []

        def keep(piece: str) -> Event:
            pieces.append(piece)
            return NOTHING

        def tell(piece: str) -> Event:
            return self.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])

        if is_string:
            yield self.arguments('"')
        found = yield from text.copy(tell if is_string else keep, *ends)
        if found:
            yield self.arguments('"' if is_string else _as_value("".join(pieces)))
        return found.removeprefix("\n")


def _words(*words: str) -> tuple[str, ...]:
    return tuple(word for word in words if word)


def _may_be_string(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return True
    types = schema.get("type")
    alternatives = [each for name in ("anyOf", "oneOf") for each in schema.get(name) or ()]
    if types is None and alternatives:
        return any(_may_be_string(each) for each in alternatives)
    return types is None or "string" in ([types] if isinstance(types, str) else types)


def _as_value(text: str) -> str:
    """Return a value that is no string as JSON: it may be written so, or as Python does."""
    text = text.strip()
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return as_json(text)
    return text


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
