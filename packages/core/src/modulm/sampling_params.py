"""What a client may ask of sampling, in vLLM's and OpenAI's words, checked the moment it is built.

Checks that need a tokenizer or a model (ids inside the vocabulary, lengths) are made in `frontend/`.
"""

import dataclasses
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from modulm.errors import RequestError, did_you_mean
from modulm.structured_outputs import StructuredOutputsParams

_LARGEST_FLOAT = sys.float_info.max
_SWITCHES = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
)
_RANGES = (
    ("temperature", 0.0, _LARGEST_FLOAT, "it must be a finite number of at least 0"),
    ("top_p", 0.0, 1.0, "it must be over 0 and at most 1"),
    ("min_p", 0.0, 1.0, "it must be between 0 and 1"),
    ("presence_penalty", -2.0, 2.0, "it must be between -2 and 2"),
    ("frequency_penalty", -2.0, 2.0, "it must be between -2 and 2"),
    ("repetition_penalty", 0.0, _LARGEST_FLOAT, "it must be a finite number over 0"),
)
_LEAST = {"n": 1, "top_k": -1, "min_tokens": 0, "max_tokens": 1, "logprobs": -1, "prompt_logprobs": -1}
_LEAST |= {"truncate_prompt_tokens": -1, "seed": -(2**63), "thinking_token_budget": -1}
_NEVER_NONE = ("n", "top_k", "min_tokens")
_PLAIN = frozenset({int, float, bool, str, type(None), list})
"""Types that `_plain` leaves alone."""
GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow (vLLM's `_SAMPLING_EPS`)."""


class RequestOutputKind(IntEnum):
    """What each streamed output holds: everything so far, only the new part, or nothing until the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


def _refuse(name: str, value: object, why: str) -> RequestError:
    return RequestError(f"{name}={value!r:.200} is refused: {why}.", parameter=name)


@dataclass(kw_only=True)
class SamplingParams:
    """Sampling parameters of one request. Raises `RequestError` (naming field, value and range) on bad values.

    Attributes:
        n: Number of completions of the prompt; they share the prompt's cache blocks.
        temperature: 0 is greedy; below 1e-5 counts as 0.
        top_k: Keep the k likeliest tokens; 0 and -1 are off.
        top_p: Keep the smallest set whose probability reaches this, in (0, 1].
        min_p: Drop tokens below this fraction of the likeliest one's probability, in [0, 1].
        seed: Makes the request's result independent of its batch; -1 is none (as in vLLM).
        repetition_penalty: Over 1 discourages tokens of prompt and output (CTRL paper), > 0.
        presence_penalty, frequency_penalty: OpenAI's, over the output only, in [-2, 2].
        stop: Strings that end the output; held back while they might be completed.
        stop_token_ids: Token ids that end the output.
        bad_words: Words the output may not contain, in any of their tokenisations.
        logprobs, prompt_logprobs: Number of alternatives to report per token; -1 means the whole vocabulary.
        max_tokens: None fills up to the model's limit.
        output_kind: Cumulative, delta or final only.
        structured_outputs: The form that the output must have.
        thinking_token_budget: Most tokens of thinking, where a reasoning parser is on; then it is closed. 0 closes it
            at once, -1 is none (as in vLLM).

    Numbers and lists may be numpy's or torch's; they are kept as Python's own.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    extra_args: dict[str, Any] | None = field(default=None)
    structured_outputs: StructuredOutputsParams | None = None
    thinking_token_budget: int | None = None

    def __new__(cls, *args: object, **kwargs: object) -> "SamplingParams":
        """Refuse unknown options by name, with the nearest known one."""
        known = cls.__dataclass_fields__
        for name in kwargs:
            if name not in known:
                raise RequestError(
                    f"Sampling parameter {name!r} is unknown.{did_you_mean(name, known)} Known: {', '.join(known)}.",
                    parameter=name,
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) not in _PLAIN:
                setattr(self, name, _plain(value))
        self.stop = _listed("stop", self.stop)
        self.bad_words = _listed("bad_words", self.bad_words)
        self.stop_token_ids = _listed("stop_token_ids", self.stop_token_ids)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _listed("allowed_token_ids", self.allowed_token_ids)
        if self.logit_bias is not None:
            self.logit_bias = _biases(self.logit_bias)
        self._check_numbers()
        self._check_counts()
        self._check_lists()
        self._check_kinds()
        if 0 <= self.temperature < GREEDY_TEMPERATURE:
            self.temperature = 0.0
        if self.top_k == -1:
            self.top_k = 0
        if self.seed == -1:
            self.seed = None
        if self.thinking_token_budget == -1:
            self.thinking_token_budget = None

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0.0

    def _check_numbers(self) -> None:
        for name, low, high, why in _RANGES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise _refuse(name, value, why)
            exclusive = name in ("top_p", "repetition_penalty") and value <= 0
            # Whole numbers may be too large for a float, so they are compared first.
            if exclusive or not low <= value <= high:
                raise _refuse(name, value, why)
            setattr(self, name, float(value))

    def _check_counts(self) -> None:
        for name, low in _LEAST.items():
            value = getattr(self, name)
            if value is None and name not in _NEVER_NONE:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise _refuse(name, value, f"it must be a whole number of at least {low}")
            if name != "seed" and value >= 2**63:
                raise _refuse(name, value, "it must be below 2**63")
        if self.seed is not None and self.seed >= 2**64:
            raise _refuse("seed", self.seed, "it must fit in 64 bits")
        if self.truncate_prompt_tokens == 0:
            raise _refuse("truncate_prompt_tokens", 0, "it must be -1 (the model's limit) or at least 1")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _refuse("min_tokens", self.min_tokens, f"it is above max_tokens={self.max_tokens}")
        if self.n > 1 and self.temperature < GREEDY_TEMPERATURE:
            raise _refuse("n", self.n, "greedy sampling (temperature 0) gives the same text each time; set temperature")

    def _check_lists(self) -> None:
        assert self.stop is not None and self.bad_words is not None
        for name, values in (("stop", self.stop), ("bad_words", self.bad_words)):
            if any(not isinstance(text, str) or not text for text in values):
                raise _refuse(name, values, "each entry must be a string that is not empty")
        if self.stop and not self.detokenize:
            raise _refuse("stop", self.stop, "stop strings need text; set detokenize=True or use stop_token_ids")
        for name in ("stop_token_ids", "allowed_token_ids"):
            if any(isinstance(i, bool) or not isinstance(i, int) for i in getattr(self, name) or []):
                raise _refuse(name, getattr(self, name), "each entry must be a token id")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise _refuse("allowed_token_ids", [], "it must hold at least one token id, or be None")
        if any(not math.isfinite(bias) for bias in (self.logit_bias or {}).values()):
            raise _refuse("logit_bias", self.logit_bias, "each bias must be a finite number")

    def _check_kinds(self) -> None:
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise _refuse(name, getattr(self, name), "it must be True or False")
        if self.extra_args is not None and not isinstance(self.extra_args, dict):
            raise _refuse("extra_args", self.extra_args, "it must be a dict, or None")
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise _refuse(
                "structured_outputs", self.structured_outputs, "it must be a StructuredOutputsParams, or None"
            )
        try:
            self.output_kind = RequestOutputKind(self.output_kind)
        except ValueError as error:
            there = ", ".join(str(kind) for kind in RequestOutputKind.__members__)
            raise _refuse("output_kind", self.output_kind, f"it must be a RequestOutputKind: {there}") from error

    def clone(self, **changes: Any) -> "SamplingParams":
        """Return a copy with `changes` applied and checked."""
        return dataclasses.replace(self, **changes)


def _plain(value: Any) -> Any:
    """Return Python's own number or list for one of numpy or torch."""
    return value.tolist() if hasattr(value, "tolist") else value


def _listed(name: str, value: Any) -> list[Any]:
    """Return what may be one string, or anything to iterate over, or None, as a list."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise _refuse(name, value, "it must be a list")
    return [_plain(item) for item in value]


def _biases(logit_bias: Any) -> dict[int, float]:
    why = "it must map token ids to numbers"
    if not isinstance(logit_bias, Mapping):
        raise _refuse("logit_bias", logit_bias, why)
    try:
        biases = {int(token): float(bias) for token, bias in logit_bias.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise _refuse("logit_bias", logit_bias, why) from error
    # JSON's keys are strings; a number that is not whole would be another token's.
    if any(isinstance(token, bool) or (not isinstance(token, str) and token != int(token)) for token in logit_bias):
        raise _refuse("logit_bias", logit_bias, why)
    return biases
