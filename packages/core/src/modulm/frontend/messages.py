"""Chat messages as clients send them -> as chat templates expect them. Refuses what no template could render.

Everything a template sees is rebuilt of plain JSON values, so that it can neither change the caller's objects nor reach
their methods. Knows roles and parts; not templates (`render.py`), not ids.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from modulm.errors import RequestError

Message = dict[str, Any]
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Type of a content part -> the key its text is under."""
_REASONING = ("reasoning_content", "reasoning", "thinking")
"""The names under which a message's reasoning is sent; templates read the first."""
_NEEDS_CONTENT = ("user", "system", "developer")


def plain(value: Any, what: str) -> Any:
    """Return a copy of `value` made of JSON values only. Raises `RequestError` naming `what` and the odd type."""
    try:
        return _plain(value, what)
    except RecursionError as error:
        raise RequestError(f"The {what} are nested too deeply to be read.", parameter=what) from error


def _plain(value: Any, what: str) -> Any:
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, what) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, what) for item in value]
    if callable(getattr(value, "model_dump", None)):
        return _plain(value.model_dump(), what)
    raise RequestError(
        f"The {what} hold a {type(value).__name__}; only JSON values can go to a chat template. "
        "Send dicts, lists, strings, numbers, true, false and null.",
        parameter=what,
    )


def normalise(messages: Any) -> list[Message]:
    """Return checked copies: keys that are null dropped, tool calls' arguments as objects, parts with their texts.

    Content stays a string or a list of `{"type": "text", "text": ...}`; `join_parts` makes strings of all of it.
    Raises `RequestError` naming the message's number.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise RequestError(
            "messages must be a list of at least one message, each with a 'role' and 'content'.", parameter="messages"
        )
    return [_message(number, message) for number, message in enumerate(plain(messages, "messages"))]


def join_parts(messages: list[Message]) -> list[Message]:
    """Return the messages with every list of parts joined by line breaks, for templates that expect a string."""
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _message(number: int, message: Any) -> Message:
    if not isinstance(message, dict):
        raise _refuse(number, f"it is a {type(message).__name__}, not an object with 'role' and 'content'")
    # As in transformers: templates handle a key that is missing, and write "None" for one that is null.
    message = {key: value for key, value in message.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _refuse(number, f"its role is {role!r}; it must be a string such as 'user' or 'assistant'")
    if "content" in message:
        message["content"] = _content(number, message["content"])
    elif role in _NEEDS_CONTENT:
        raise _refuse(number, f"a {role!r} message needs 'content'")
    if "tool_calls" in message:
        message["tool_calls"] = _tool_calls(number, message["tool_calls"])
        if not message["tool_calls"]:
            del message["tool_calls"]
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _content(number: int, content: Any) -> str | list[Message]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refuse(number, f"its content is a {type(content).__name__}; it must be a string or a list of parts")
    return [{"type": "text", "text": _part_text(number, part)} for part in content]


def _part_text(number: int, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise _refuse(number, f"a content part has the type {kind!r}; this engine takes: {', '.join(_TEXT_PARTS)}")
    if not isinstance(part.get(key), str):
        raise _refuse(number, f"a content part of type {kind!r} has no string under {key!r}")
    text: str = part[key]
    return text


def _tool_calls(number: int, calls: Any) -> list[Message]:
    if not isinstance(calls, list):
        raise _refuse(number, f"its tool_calls are a {type(calls).__name__}; they must be a list")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _refuse(number, "each of its tool_calls must hold a 'function' with a 'name' and 'arguments'")
        function["arguments"] = _arguments(number, function["name"], function.get("arguments"))
    return calls


def _arguments(number: int, name: str, arguments: Any) -> Message:
    """Templates write out objects; clients send JSON text, or nothing at all for a call without arguments."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise _refuse(number, f"the arguments of its call of {name!r} are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise _refuse(number, f"the arguments of its call of {name!r} are not a JSON object")
    return arguments


def _refuse(number: int, why: str) -> RequestError:
    return RequestError(f"Message {number} is refused: {why}.", parameter="messages")
