"""What parsers answer with: tool calls, whole and in pieces, in OpenAI's words.

Plain classes with the two methods of pydantic's that parsers call; a field that holds an object takes a dict as well.
"""

from dataclasses import dataclass, field, fields
from typing import Any

from vllm.entrypoints.chat_utils import make_tool_call_id


class Message:
    """The root of these classes."""

    def model_dump(self, *, exclude_none: bool = False, exclude_unset: bool = False, **ignored: Any) -> dict[str, Any]:
        """Return the fields as a dict, all the way down."""
        found: dict[str, Any] = {}
        for each in fields(self):  # type: ignore[arg-type]
            value = _dumped(getattr(self, each.name), exclude_none or exclude_unset)
            if value is not None or not (exclude_none or exclude_unset):
                found[each.name] = value
        return found

    @classmethod
    def model_validate(cls, values: Any) -> Any:
        """Return an object of a dict; an object as it is."""
        return values if isinstance(values, cls) else cls(**values)


def _dumped(value: Any, exclude_none: bool) -> Any:
    if isinstance(value, Message):
        return value.model_dump(exclude_none=exclude_none)
    return [_dumped(each, exclude_none) for each in value] if isinstance(value, list) else value


@dataclass(kw_only=True)
class FunctionCall(Message):
    """A call: a function's name, and JSON text of its arguments."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(kw_only=True)
class ToolCall(Message):
    """A call with its id."""

    function: FunctionCall
    id: str = field(default_factory=make_tool_call_id)
    type: str = "function"

    def __post_init__(self) -> None:
        self.function = FunctionCall.model_validate(self.function)


@dataclass(kw_only=True)
class ExtractedToolCallInformation(Message):
    """What a whole text held."""

    tools_called: bool
    tool_calls: list[ToolCall]
    content: str | None = None


@dataclass(kw_only=True)
class DeltaFunctionCall(Message):
    """More of a call; its name comes once."""

    name: str | None = None
    arguments: str | None = None


@dataclass(kw_only=True)
class DeltaToolCall(Message):
    """More of the call number `index`; its id and type come once."""

    index: int
    id: str | None = None
    type: str | None = None
    function: DeltaFunctionCall | None = None

    def __post_init__(self) -> None:
        if self.function is not None:
            self.function = DeltaFunctionCall.model_validate(self.function)


@dataclass(kw_only=True)
class DeltaMessage(Message):
    """More of an answer."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The older name of `reasoning`."""
    tool_calls: list[DeltaToolCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reasoning = self.reasoning_content = self.reasoning or self.reasoning_content
        self.tool_calls = [DeltaToolCall.model_validate(each) for each in self.tool_calls or ()]
