"""Calls that a request insists on, or whose arguments are strict: their forms, and what reads those in plain JSON.

Where the parser says how its format writes calls (`ToolParser.call_text`), `forced_tags` and `strict_tags` are what may
be written. Else `schema_of` is: `tool_choice: "required"` makes the answer a list of `{"name", "parameters"}`, a named
function makes it the arguments alone, both as in vLLM. Knows no backend.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from modulm.errors import RequestError
from modulm.interfaces.parsers import CallArguments, CallStart, CallText, Content, Event, ResponseContext, ToolParser
from modulm.interfaces.reading import NOTHING, GrowingText, Make, Reading, TextParser

Function = Mapping[str, Any]
"""OpenAI's `tools[].function`."""
_BETWEEN = re.compile(r"[\s,]+")
_NOT_SCHEMAS = ("const", "enum", "default", "examples")
_SHAPES = ("type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const")
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def arguments_schema(function: Function) -> dict[str, Any]:
    """Return the schema of a function's arguments, an object. Raises `RequestError` where it is none."""
    parameters = dict(function.get("parameters") or NO_ARGUMENTS)
    if not any(key in parameters for key in _SHAPES):
        parameters["type"] = "object"
    if parameters.get("type", "object") != "object":
        raise RequestError(
            f"Tool {function['name']!r} is refused: arguments are an object, and its parameters have the type "
            f"{parameters['type']!r}.",
            parameter="tools",
        )
    return parameters


def schema_of(functions: Sequence[Function], *, named: bool, parallel: bool) -> dict[str, Any]:
    """Return what the answer must be: the arguments of the one function if it is named, else a list of calls."""
    if named:
        return arguments_schema(functions[0])
    schemas = [arguments_schema(function) for function in functions]
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": function["name"]}, "parameters": {"$ref": f"#/$defs/{number}"}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for number, function in enumerate(functions)
    ]
    answer: dict[str, Any] = {"type": "array", "items": {"anyOf": calls}, "minItems": 1}
    if not parallel:
        answer["maxItems"] = 1
    # One document has one dialect; where tools differ in it, the backend judges.
    dialects = {schema.get("$schema") for schema in schemas}
    if len(dialects) == 1 and (dialect := dialects.pop()) is not None:
        answer = {"$schema": dialect, **answer}
        schemas = [{key: value for key, value in schema.items() if key != "$schema"} for schema in schemas]
    answer["$defs"] = {str(number): _moved(schema, f"#/$defs/{number}") for number, schema in enumerate(schemas)}
    return answer


def forced_tags(texts: Sequence[CallText], functions: Sequence[Function], *, parallel: bool) -> dict[str, Any]:
    """Return the format (of structural tags) of an answer that is calls, and nothing else."""
    tags = [_tag(text, arguments_schema(function)) for text, function in zip(texts, functions, strict=True)]
    separated = {"type": "tags_with_separator", "tags": tags, "separator": texts[0].separator}
    return {**separated, "at_least_one": True, "stop_after_first": not parallel}


def strict_tags(texts: Sequence[CallText], functions: Sequence[Function], *, parallel: bool) -> dict[str, Any]:
    """Return the format of an answer in which calls may come, those of strict functions by their schemas."""
    tags = [
        _tag(text, arguments_schema(function) if function.get("strict") else {"type": "object"})
        for text, function in zip(texts, functions, strict=True)
    ]
    triggers = list(dict.fromkeys(text.trigger for text in texts))
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, "stop_after_first": not parallel}


def _tag(text: CallText, schema: Mapping[str, Any]) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": text.begin, "content": content, "end": text.end}


def _moved(schema: Any, place: str) -> Any:
    """Return a schema that stands at `place` of another: what it refers to in itself moves with it."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: value if key in _NOT_SCHEMAS else _moved(value, place) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = place + reference[1:]
    return moved


class RequiredCalls(TextParser, ToolParser):
    """Reads a list of calls, whatever the order of their members is."""

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`. What breaks off before a call has begun is content."""
        text.record()
        yield from text.skip_space()
        yield from text.accept("[")
        index = 0
        while True:
            yield from text.take_while(_BETWEEN)
            if not (yield from text.accept("{")) or not (yield from self._copy_call(text, index)):
                break
            index += 1
        yield from text.accept("]")
        yield Content(text.recorded())

    def _copy_call(self, text: GrowingText, index: int) -> Reading[bool]:
        """Report a call, of which "{" was read; returns whether there was one."""
        name: str | None = None
        held: str | None = None
        while True:
            yield from text.take_while(_BETWEEN)
            if not (yield from text.accept('"')):
                break
            key = yield from _take_string(text)
            yield from text.take_until(":")
            yield from text.skip_space()
            if key == "name" and (yield from text.accept('"')):
                name = yield from _take_string(text)
                if name is None:
                    break
                text.recorded()
                yield CallStart(index, name)
                yield CallArguments(index, held or "")
            elif key == "parameters" and name is not None:
                yield from _copy_object(text, lambda piece: CallArguments(index, piece))
            else:
                held = yield from _take_object(text)
        yield from text.accept("}")
        return name is not None


class NamedCall(TextParser, ToolParser):
    """Reads the arguments of the one function."""

    def __init__(self, context: ResponseContext) -> None:
        super().__init__(context)
        self._name: str = context.tools[0]["name"]

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        yield from text.skip_space()
        if (yield from text.peek()):
            yield CallStart(0, self._name)
            yield from text.copy(lambda piece: CallArguments(0, piece))


def _copy_object(text: GrowingText, make: Make) -> Reading[None]:
    """Report a JSON object, which needs no mending: its form was enforced."""
    depth = 0
    while mark := (yield from text.copy(make, *'{}[]"')):
        yield make(mark)
        if mark == '"':
            yield from _copy_string(text, make)
        depth += (mark in "{[") - (mark in "}]")
        if depth == 0:
            return


def _copy_string(text: GrowingText, make: Make) -> Reading[bool]:
    """Report a string to its closing quote; returns whether there was one."""
    while mark := (yield from text.copy(make, '"', "\\")):
        yield make(mark)
        if mark == '"':
            return True
        yield make((yield from text.take()))
    return False


def _take_object(text: GrowingText) -> Reading[str]:
    pieces: list[str] = []
    yield from _copy_object(text, _into(pieces))
    return "".join(pieces)


def _take_string(text: GrowingText) -> Reading[str | None]:
    """Return what a string says, of which the quote was read; None if it breaks off."""
    pieces: list[str] = []
    if not (yield from _copy_string(text, _into(pieces))):
        return None
    said: str = json.loads('"' + "".join(pieces))
    return said


def _into(pieces: list[str]) -> Make:
    def keep(piece: str) -> Event:
        pieces.append(piece)
        return NOTHING

    return keep
