"""Tool calls written as JSON objects, `{"name": ..., "arguments": {...}}`, in whatever order their keys are.

Knows the object; what stands around it is each format's own.
"""

import json
import re
from typing import ClassVar

from modulm.interfaces.parsers import (
    CallArguments,
    CallStart,
    CallText,
    Content,
    ResponseContext,
    TokenizerView,
    ToolParser,
)
from modulm.interfaces.reading import GrowingText, Reading, TextParser
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_parsers_tools.json_text import copy_value, take_string, take_value

BETWEEN = re.compile(r"[\s,]+")
_QUOTES = ("'", '"')


class CallParser(TextParser, ToolParser):
    """Counts calls, and reads those that are JSON objects.

    Attributes:
        frames: Marks around an answer, which are left out of the content.
        name_key, argument_keys: Under which an object has the function's name and arguments.
        signs, foreign_signs: What a chat template of the format has, and what one of another that shares them.
        around: What models write before and behind the object of a call; None where nobody shall write it for them.
    """

    frames: ClassVar[tuple[str, ...]] = ()
    name_key: ClassVar[str] = "name"
    argument_keys: ClassVar[tuple[str, ...]] = ("arguments", "parameters")
    signs: ClassVar[tuple[str, ...]] = ()
    foreign_signs: ClassVar[tuple[str, ...]] = ()
    around: ClassVar[tuple[str, str] | None] = None

    def __init__(self, context: ResponseContext) -> None:
        super().__init__(context)
        self.num_calls = 0

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        for sign in cls.signs:
            if sign not in chat_template:
                return Rejected(f"the chat template has no {sign}")
        if other := next((sign for sign in cls.foreign_signs if sign in chat_template), None):
            return Rejected(f"the chat template has {cls.signs[0]}, but with {other}")
        signs = " and ".join(cls.signs)
        return Accepted(f"the chat template has {signs}") if signs else super().matches(tokenizer, chat_template)

    @classmethod
    def call_text(cls, name: str) -> CallText | None:
        """See `ToolParser`."""
        if cls.around is None:
            return None
        before, behind = cls.around
        begin = f'{before}{{"{cls.name_key}": {json.dumps(name)}, "{cls.argument_keys[0]}": '
        trigger = before.strip() if len(before) > 1 else f'{before}{{"{cls.name_key}"'  # a bracket stands in any text
        return CallText(trigger=trigger, begin=begin, end="}" + behind)

    def begin(self, name: str, call_id: str | None = None) -> CallStart:
        """Return the start of the next call."""
        self.num_calls += 1
        return CallStart(self.num_calls - 1, name, call_id)

    def arguments(self, piece: str) -> CallArguments:
        """Return more arguments of the call that was begun last."""
        return CallArguments(self.num_calls - 1, piece)

    def copy_content(self, text: GrowingText, *until: str) -> Reading[str]:
        """As `GrowingText.copy`, without the marks around an answer."""
        while (found := (yield from text.copy(Content, *until, *self.frames))) in self.frames:
            pass
        return found

    def copy_arguments(self, text: GrowingText) -> Reading[None]:
        """Report the value that comes next as the arguments of the call; some models write it as a string, or null."""
        found = yield from text.peek()
        if found == "{":
            yield from copy_value(text, self.arguments)
        elif found in _QUOTES:
            said = yield from take_string(text)
            yield self.arguments(said if said.lstrip().startswith("{") else json.dumps(said, ensure_ascii=False))
        else:
            value = yield from take_value(text)
            yield self.arguments("{}" if value == "null" else value)

    def copy_call(self, text: GrowingText, *, is_marked: bool) -> Reading[bool]:
        """Report the call that an object is, of which "{" was read; returns whether it is one: else nothing was told.

        Args:
            is_marked: Whether the format says that a call stands here: then it begins with its name. Otherwise the
                object must prove to be one, by a tool's name and arguments, before anything is reported.
        """
        first = self.num_calls
        name: str | None = None
        arguments: str | None = None
        while True:
            yield from text.take_while(BETWEEN)
            found = yield from text.peek()
            if found not in _QUOTES:
                break
            key = yield from take_string(text)
            yield from text.skip_space()
            if not (yield from text.accept(":")):
                break
            yield from text.skip_space()
            has_begun = self.num_calls > first
            if key == self.name_key and name is None:
                if (yield from text.peek()) not in _QUOTES:
                    break
                name = yield from take_string(text)
                if not name or not (is_marked or self.is_known(name)):
                    return False
                if is_marked or arguments is not None:
                    yield self.begin(name)
                if arguments is not None:
                    yield self.arguments(arguments)
            elif key in self.argument_keys and arguments is None:
                arguments = ""
                if name is None:
                    arguments = yield from take_value(text)
                else:
                    if not has_begun:
                        yield self.begin(name)
                    yield from self.copy_arguments(text)
            elif not is_marked and not has_begun and key not in ("type", "id"):
                return False
            else:
                yield from take_value(text)
        if self.num_calls == first:
            return False
        if (yield from text.accept("}")) and arguments is None:
            yield self.arguments("{}")
        return True

    def copy_marked(self, text: GrowingText, mark: str, ends: tuple[str, ...], others: tuple[str, ...]) -> Reading[str]:
        """Report the calls behind a mark: objects one after the other, or a list of them, up to one of `ends`.

        What else is there is content: all of it, the mark included, if there is no call. Returns the word that was
        read last, where it is one of `others`.
        """
        before = self.num_calls
        text.record()
        yield from text.skip_space()
        in_list = bool((yield from text.accept("[")))
        read = mark + text.recorded()
        while True:
            text.record()
            yield from text.take_while(BETWEEN)
            if self.num_calls > before:
                if in_list and (yield from text.accept("]")):
                    in_list = False
                    continue
                if not in_list and (yield from text.accept(*ends)):
                    return ""
            if not ((yield from text.accept("{")) and (yield from self.copy_call(text, is_marked=True))):
                break
            read = ""
        read += text.recorded()
        if self.num_calls == before:
            yield Content(read)
            return ""
        if read.strip() or not ends:
            yield Content(read)
        if not ends:
            return ""
        found = yield from text.copy(Content, *ends, *others)
        return found if found in others else ""

    def is_known(self, name: str) -> bool:
        """Whether the request has this tool; any name is good where it is not known which it has."""
        return not self.context.tools or self.context.parameters(name) is not None


class MarkedParser(CallParser):
    """JSON behind a mark that nothing else begins with. A subclass names the marks.

    Attributes:
        starts, ends: What stands before and behind calls; without ends, the objects or their list end by themselves.
    """

    starts: ClassVar[tuple[str, ...]]
    ends: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.signs = cls.__dict__.get("signs", cls.starts[:1])

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        found = yield from self.copy_content(text, *self.starts)
        while found:
            found = yield from self.copy_marked(text, found, self.ends, self.starts)
            found = found or (yield from self.copy_content(text, *self.starts))
