"""What completions and chat requests have in common: OpenAI's and vLLM's sampling fields; how they become parameters.

Null means "not given" for every field. Fields that are accepted and change no answer are in `ignored.py`.
"""

from typing import Any

import msgspec

from modulm.errors import RequestError
from modulm.sampling_params import RequestOutputKind, SamplingParams
from modulm.server.schema.structured import asked_form, form_of


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream tells beside its text."""

    include_usage: bool | None = None
    """One more chunk at the end, with the usage of the whole request."""
    continuous_usage_stats: bool | None = None
    """The usage so far in every chunk."""


class GenerationRequest(msgspec.Struct, kw_only=True):
    """Fields of both kinds of request."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    vllm_xargs: dict[str, Any] | None = None
    """For logits processors: `SamplingParams.extra_args`."""
    response_format: dict[str, Any] | None = None
    """OpenAI's: `text`, `json_object`, `json_schema`, and `structural_tag`."""
    structured_outputs: dict[str, Any] | None = None
    """vLLM's: one of json, regex, choice, grammar, json_object, structural_tag, and how JSON is written."""
    thinking_token_budget: int | None = None
    """Most tokens of thinking; then its end is written. 0: none; needs a reasoning parser."""
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def field_of(self, parameter: str | None) -> str | None:
        """Return the field that brought a sampling parameter."""
        if parameter == "structured_outputs":
            return asked_form(self)[0]
        return "vllm_xargs" if parameter == "extra_args" else parameter

    @property
    def has_usage(self) -> bool:
        """Whether the stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_running_usage(self) -> bool:
        """Whether every chunk tells the usage so far."""
        return self.has_usage and self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


_CONVERTED = ("structured_outputs",)
_TAKEN = tuple(
    name
    for name in GenerationRequest.__struct_fields__
    if name in SamplingParams.__dataclass_fields__ and name not in _CONVERTED
)


def sampling_params(body: GenerationRequest, defaults: SamplingParams, **changes: Any) -> SamplingParams:
    """Return the request's parameters over the model's defaults. Raises `RequestError` naming the field."""
    given = {name: value for name in _TAKEN if (value := getattr(body, name)) is not None}
    if body.vllm_xargs is not None:
        given["extra_args"] = body.vllm_xargs
    if (form := form_of(body)) is not None:
        given["structured_outputs"] = form
    if body.has_usage and not body.stream:
        raise RequestError(
            "stream_options is refused: the answer is no stream, and has its usage anyway. Leave it out, or set stream "
            "to true.",
            parameter="stream_options",
        )
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    try:
        return defaults.clone(**{**given, "output_kind": kind, **changes})
    except RequestError as error:
        error.parameter = body.field_of(error.parameter)
        raise


class Usage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Tokens of one request; the prompt counts once, whatever `n` is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | None = None
