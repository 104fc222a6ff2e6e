"""What a caller of `LLM` or `AsyncLLM` gets back, with vLLM's field names. Knows no room; built by `frontend/`."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modulm.types import Adapter

if TYPE_CHECKING:
    from modulm.interfaces.parsers import Event


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
    events: "list[Event] | None" = None
    """What parsers found in it, where they were asked to; `text` is then without the thinking."""

    def finished(self) -> bool:
        """Whether this completion has ended."""
        return self.finish_reason is not None

    def add(self, news: "CompletionOutput") -> None:
        """Join what came later; both tell only what is new."""
        self.text += news.text
        self.token_ids += news.token_ids
        if news.events is not None:
            self.events = (self.events or []) + news.events
        if news.logprobs is not None:
            self.logprobs = (self.logprobs or []) + news.logprobs
        self.cumulative_logprob = news.cumulative_logprob
        self.finish_reason, self.stop_reason = news.finish_reason, news.stop_reason


@dataclass(kw_only=True)
class RequestOutput:
    """All completions of one prompt, with vLLM's field names; `error` is set when the engine refused or failed it.

    `refused` names the parameter where the fault is the request's own and was found after it had been taken in.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    prompt_logprobs: PromptLogprobs | None = None
    num_cached_tokens: int | None = None
    lora_request: Adapter | None = None
    error: str | None = None
    refused: str | None = None

    def add(self, news: "RequestOutput", *, aggregate: bool) -> None:
        """Take in a later output of this request (vLLM's method): `aggregate` joins what is new, else it replaces."""
        held = {completion.index: completion for completion in self.outputs}
        for completion in news.outputs:
            mine = held.get(completion.index)
            if mine is None or not aggregate:
                held[completion.index] = completion
            else:
                mine.add(completion)
        self.outputs = [held[index] for index in sorted(held)]
        self.finished, self.error = news.finished, news.error or self.error
        self.refused = news.refused or self.refused
        if news.num_cached_tokens is not None:
            self.num_cached_tokens = news.num_cached_tokens
        if news.prompt_logprobs is not None:
            self.prompt_logprobs = news.prompt_logprobs


@dataclass(frozen=True, kw_only=True)
class Health:
    """How an engine is.

    Attributes:
        alive: Whether waiting helps; False once the engine is gone for good, and only a new process serves again.
        ready: Whether a request would be served: the engine has stepped lately or has nothing to do, and is not
            being started again.
        reason: Why it is not ready.
        restarts: How often the engine was started again, in all.
    """

    alive: bool
    ready: bool
    reason: str | None = None
    restarts: int = 0
