"""A chat request as parsers see it: what modulm tells them of it, and what `adjust_request` may set."""

from dataclasses import dataclass, field
from typing import Any

from vllm.entrypoints.openai.engine.protocol import Message


@dataclass(kw_only=True)
class FunctionDefinition(Message):
    """A function that may be called; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


@dataclass(kw_only=True)
class ChatCompletionToolsParam(Message):
    """A tool that may be called."""

    function: FunctionDefinition
    type: str = "function"


@dataclass(kw_only=True)
class ChatCompletionNamedFunction(Message):
    """The function that must be called, by name."""

    name: str


@dataclass(kw_only=True)
class ChatCompletionNamedToolChoiceParam(Message):
    """A choice of one function."""

    function: ChatCompletionNamedFunction
    type: str = "function"


@dataclass(kw_only=True)
class ChatCompletionRequest(Message):
    """A request. `skip_special_tokens` and `spaces_between_special_tokens` are heeded when a parser changes them."""

    tools: list[ChatCompletionToolsParam] | None = None
    tool_choice: str | None = "none"
    chat_template_kwargs: dict[str, Any] | None = field(default_factory=dict)
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_reasoning: bool = True
