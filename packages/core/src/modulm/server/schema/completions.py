"""/v1/completions: the request, and the choices of answers and chunks."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from modulm.server.schema.sampling import GenerationRequest, Usage


class CompletionRequest(GenerationRequest, kw_only=True):
    """Continue one prompt or several."""

    prompt: Annotated[
        str | list[str | int | list[int]],
        msgspec.Meta(description="A text, a list of texts, a list of token ids, or a list of lists of token ids."),
    ]
    logprobs: int | None = None
    """Alternatives to report per token."""
    best_of: int | None = None


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """One entry per token in each list."""

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[Any] | None | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The whole answer."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
