"""/v1/chat/completions: the request, and the choices of answers and chunks.

Messages are described here for readers; what they may hold is judged by the front end, where templates are.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from modulm.server.schema.sampling import GenerationRequest, Usage

_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"type": "string", "examples": ["system", "user", "assistant", "tool"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
            "name": {"type": "string"},
            "tool_calls": {"type": "array", "items": {"type": "object"}},
            "tool_call_id": {"type": "string"},
        },
    },
}


class ChatRequest(GenerationRequest, kw_only=True):
    """Answer a conversation."""

    messages: Annotated[Any, msgspec.Meta(description="Oldest first.", extra_json_schema=_MESSAGES)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    """Shown to the model; calls are found by the parser that the server was started with."""
    tool_choice: Any = None
    """"none", "auto", "required", or {"type": "function", "function": {"name": ...}}."""
    parallel_tool_calls: bool | None = None
    """False: at most one call is told."""
    include_reasoning: bool | None = None
    """False: what a reasoning parser finds is not told."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    """Goes to the chat template under this name."""

    def field_of(self, parameter: str | None) -> str | None:
        """Chat has names of its own for two parameters."""
        if parameter == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        return "top_logprobs" if parameter == "logprobs" else super().field_of(parameter)


class TopLogprob(msgspec.Struct, kw_only=True):
    """One alternative at one position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    """One position: the chosen token and the likeliest."""

    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """One entry per token."""

    content: list[TokenLogprob]
    refusal: None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    """What is called; `arguments` is JSON text."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """One call; in a chunk, what is new of the call of this index."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionCall


class Message(msgspec.Struct, kw_only=True):
    """The model's turn; in a chunk, what is new of it. Both names of the reasoning are in use."""

    role: str | UnsetType = UNSET
    content: str | None | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    refusal: None | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """What a chunk adds to one answer."""

    index: int
    delta: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The whole answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[Any] | None | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
