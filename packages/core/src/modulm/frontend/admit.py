"""A prompt and its parameters -> the requests the engine runs, one per completion; or a refusal with the numbers.

Everything is resolved here (limits, ids that end the output, seeds), so that the engine reads no text and makes no
choice. Knows the model's length and vocabulary; not blocks, not budgets, which the engine checks itself.
"""

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import EngineError, RequestError
from modulm.frontend.prompt import Prompt
from modulm.frontend.tokenizer import Tokenizer
from modulm.interfaces.logits import LogitsProcessor
from modulm.sampling_params import SamplingParams
from modulm.types import Adapter, Request, Thinking

MAX_COMPLETIONS = 16_384
"""Most completions of one prompt (vLLM's limit)."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What bounds one request.

    Attributes:
        max_model_len: Longest sequence.
        vocab_size: Number of ids.
        max_logprobs: Log-probabilities per token; -1 is any number.
        has_priorities: Whether the engine goes by them.
    """

    max_model_len: int
    vocab_size: int
    max_logprobs: int
    has_priorities: bool

    @classmethod
    def of(cls, config: EngineConfig, model_config: ModelConfig) -> "Limits":
        """Read them from the configurations."""
        return cls(
            max_model_len=model_config.max_model_len,
            vocab_size=model_config.vocab_size,
            max_logprobs=config.max_logprobs,
            has_priorities=config.scheduling_policy == "priority",
        )


class Admission:
    """Admits prompts one after the other; the ids it gives out are unique while it lives."""

    def __init__(
        self,
        limits: Limits,
        tokenizer: Tokenizer,
        eos_token_ids: Sequence[int],
        logits_processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        self._limits = limits
        self._tokenizer = tokenizer
        self._eos_token_ids = list(eos_token_ids)
        self._logits_processors = logits_processors
        self._counter = itertools.count()

    def admit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        adapter: Adapter | None = None,
        thinking: Thinking | None = None,
    ) -> list[Request]:
        """Return one request per completion, `params.n` of them. Raises `RequestError`."""
        limits, number = self._limits, next(self._counter)
        self._check_params(params)
        check_priority(priority, limits)
        token_ids = truncated(prompt.token_ids, params, limits)
        check_prompt(token_ids, limits)
        stop_token_ids = dict.fromkeys(
            [*(params.stop_token_ids or []), *([] if params.ignore_eos else self._eos_token_ids)]
        )
        first = Request(
            request_id=f"{number}-0",
            prompt_token_ids=token_ids,
            params=params,
            max_tokens=resolve_max_tokens(len(token_ids), params, limits),
            stop_token_ids=list(stop_token_ids),
            eos_token_ids=self._eos_token_ids,
            bad_words_token_ids=bad_words(params, self._tokenizer),
            seed=params.seed,
            priority=priority,
            arrival_time=time.time(),
            cache_salt=prompt.cache_salt,
            fanout_salt=str(number) if params.n > 1 else None,
            adapter=adapter,
            thinking=thinking,
        )
        # The prompt is the same for all, so only one of them reports on it.
        others = params if params.prompt_logprobs is None else params.clone(prompt_logprobs=None)
        return [first] + [
            msgspec.structs.replace(
                first, request_id=f"{number}-{index}", params=others, seed=_child_seed(params.seed, index)
            )
            for index in range(1, params.n)
        ]

    def _check_params(self, params: SamplingParams) -> None:
        if params.n > MAX_COMPLETIONS:
            raise RequestError(f"n={params.n} is refused: at most {MAX_COMPLETIONS:,} are served.", parameter="n")
        check_ids("stop_token_ids", params.stop_token_ids or (), self._limits)
        check_ids("allowed_token_ids", params.allowed_token_ids or (), self._limits)
        check_ids("logit_bias", params.logit_bias or (), self._limits)
        check_num_logprobs("logprobs", params.logprobs, self._limits)
        check_num_logprobs("prompt_logprobs", params.prompt_logprobs, self._limits)
        for processor in self._logits_processors:
            try:
                processor.validate_params(params)
            except RequestError:
                raise
            except ValueError as error:
                raise RequestError(f"Logits processor {processor.__name__!r} refuses: {error}") from error
            except (Exception, SystemExit) as error:
                raise EngineError(f"Logits processor {processor.__name__!r} failed: {error!r}. Mend it.") from error


def check_ids(parameter: str, token_ids: Iterable[int], limits: Limits) -> None:
    """Refuse ids that the model does not have: they would index past its logits or embeddings."""
    for token_id in token_ids:
        if not 0 <= token_id < limits.vocab_size:
            raise RequestError(
                f"{parameter} holds token id {token_id}, and this model's ids go from 0 to {limits.vocab_size - 1}. "
                "Use ids of this model's tokenizer.",
                parameter=parameter,
            )


def check_priority(priority: Any, limits: Limits) -> None:
    """Refuse what cannot be put in order, and any wish that a first-come engine would not honour (as vLLM does)."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**63) <= priority < 2**63:
        raise RequestError(
            f"priority={priority!r} is refused: it must be a whole number of at most 64 bits. Smaller is served first.",
            parameter="priority",
        )
    if priority and not limits.has_priorities:
        raise RequestError(
            f"priority={priority!r} is refused: this engine serves first come, first served. "
            "Start with scheduling_policy='priority', or leave it out.",
            parameter="priority",
        )


def check_num_logprobs(parameter: str, asked: int | None, limits: Limits) -> None:
    """Refuse more alternatives per token than the engine was started with; -1 asks for the whole vocabulary."""
    if asked is None or limits.max_logprobs == -1:
        return
    number = limits.vocab_size if asked == -1 else asked
    if number > limits.max_logprobs:
        raise RequestError(
            f"{parameter}={asked} asks for {number:,} values per token, and max_logprobs is {limits.max_logprobs:,}. "
            f"Ask for at most {limits.max_logprobs:,}, or start with a larger max_logprobs.",
            parameter=parameter,
        )


def truncated(token_ids: list[int], params: SamplingParams, limits: Limits) -> list[int]:
    """Return the last `truncate_prompt_tokens` ids; -1 keeps what leaves room for `max_tokens`."""
    keep = params.truncate_prompt_tokens
    if keep is None:
        return token_ids
    if keep == -1:
        keep = max(1, limits.max_model_len - (params.max_tokens or 1))
    if keep > limits.max_model_len:
        raise RequestError(
            f"truncate_prompt_tokens={keep} is above the model's limit of {limits.max_model_len} tokens. "
            f"Use at most {limits.max_model_len - 1}, so that one token can be generated.",
            parameter="truncate_prompt_tokens",
        )
    return token_ids[-keep:]


def check_prompt(token_ids: list[int], limits: Limits) -> None:
    """Refuse prompts that are empty, too long or hold ids that the model does not have."""
    if not token_ids:
        raise RequestError(
            "The prompt is empty: it has no token to continue from. Send at least one token.", parameter="prompt"
        )
    excess = len(token_ids) - limits.max_model_len + 1
    if excess > 0:
        raise RequestError(
            f"The prompt has {len(token_ids):,} tokens and the model's limit is {limits.max_model_len:,}, output "
            f"included. Shorten it by at least {excess:,}, or start with a larger max_model_len.",
            parameter="prompt",
        )
    if max(token_ids) >= limits.vocab_size or min(token_ids) < 0:
        check_ids("prompt", token_ids, limits)


def resolve_max_tokens(num_prompt: int, params: SamplingParams, limits: Limits) -> int:
    """Return how many tokens may be generated: what was asked for, or what the model has room for if that is less."""
    room = limits.max_model_len - num_prompt
    max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
    if params.min_tokens > max_tokens:
        raise RequestError(
            f"min_tokens={params.min_tokens} cannot be reached: after a prompt of {num_prompt:,} tokens the model's "
            f"limit of {limits.max_model_len:,} leaves {max_tokens:,}. Lower min_tokens or shorten the prompt.",
            parameter="min_tokens",
        )
    return max_tokens


def bad_words(params: SamplingParams, tokenizer: Tokenizer) -> list[list[int]]:
    """Return all tokenisations of all bad words. Raises `RequestError` for a word that has none."""
    found: list[list[int]] = []
    for word in params.bad_words or ():
        forms = tokenizer.tokenisations_of(word)
        if not forms:
            raise RequestError(
                f"bad_words holds {word!r}, which this model's tokenizer turns into nothing. Leave it out.",
                parameter="bad_words",
            )
        found += forms
    return found


def _child_seed(seed: int | None, index: int) -> int | None:
    """As vLLM: the n completions of a seeded request are seeded one after the other."""
    return None if seed is None else (seed + index) if seed + index < 2**64 else seed + index - 2**64
