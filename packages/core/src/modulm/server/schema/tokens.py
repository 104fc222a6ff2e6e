"""/tokenize and /detokenize, in vLLM's shape."""

from typing import Any

import msgspec


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A text or a conversation to turn into ids: exactly one of `prompt` and `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Any = None
    add_special_tokens: bool | None = None
    """By default yes for a prompt; a conversation's template writes its own."""
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class Tokens(msgspec.Struct, kw_only=True):
    """The ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Ids to turn into text."""

    tokens: list[int]
    model: str | None = None


class Text(msgspec.Struct, kw_only=True):
    """The text of ids, special tokens included."""

    prompt: str
