"""What a caller of `LLM` or `AsyncLLM` gets back, with vLLM's field names. Knows no room; built by `frontend/`."""

from dataclasses import dataclass, field

from modulm.types import Adapter


@dataclass(kw_only=True)
class Logprob:
    """One token's log-probability, its rank (1 = likeliest) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobs = list[dict[int, Logprob] | None]
SampleLogprobs = list[dict[int, Logprob]]


@dataclass(kw_only=True)
class CompletionOutput:
    """One completion: text and tokens so far (or only the new part, for `RequestOutputKind.DELTA`)."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Adapter | None = None

    def finished(self) -> bool:
        """Whether this completion has ended."""
        return self.finish_reason is not None


@dataclass(kw_only=True)
class RequestOutput:
    """All completions of one prompt, with vLLM's field names; `error` is set when the engine refused or failed it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    prompt_logprobs: PromptLogprobs | None = None
    num_cached_tokens: int | None = None
    lora_request: Adapter | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Health:
    """How an engine is.

    Attributes:
        alive: Whether this process can answer at all.
        ready: Whether a request would be served: the engine has stepped lately or has nothing to do, and is not
            being started again.
        reason: Why it is not ready.
        restarts: How often the engine was started again, in all.
    """

    alive: bool
    ready: bool
    reason: str | None = None
    restarts: int = 0
