"""The built-in logits processors (minimum length, bias, min-p), and all processors of an engine in order.

They follow the public contract (`interfaces/logits.py`): state by batch row, told of rows that leave, come and move.
What is decided anew by every token (penalties, masks) is in `penalties.py` and `masks.py`.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from modulm.interfaces.logits import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, follow_rows
from modulm.sampling_params import SamplingParams

State = TypeVar("State")


class _ByRow(LogitsProcessor, Generic[State]):
    """Keeps one state for each row whose parameters ask for it."""

    def __init__(self, config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._by_row: dict[int, State] = {}
        self._changed = False

    @abstractmethod
    def _state(self, params: SamplingParams, output_ids: list[int]) -> State | None:
        """Return a new row's state, or None when it wants nothing."""

    @property
    def is_idle(self) -> bool:
        """Whether no row wants anything."""
        return not self._by_row

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow removed, added and moved rows."""
        if batch_update is None:
            return
        self._changed = True
        follow_rows(self._by_row, batch_update, lambda params, _, output_ids: self._state(params, output_ids))


def _places(ids_by_row: dict[int, Sequence[int]], vocab_size: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return (rows, ids), int64, of all pairs whose id the vocabulary has."""
    pairs = [(row, i) for row, ids in ids_by_row.items() for i in ids if 0 <= i < vocab_size]
    return tuple(torch.tensor(pairs, dtype=torch.int64, device=device).reshape(-1, 2).unbind(1))


class MinTokens(_ByRow[tuple[int, list[int]]]):
    """Forbids the ids that end the output until it has `min_tokens` tokens.

    `ending_ids(row)` names them: the model's end-of-sequence ids are in the request, not in its parameters.
    """

    def __init__(
        self, config: Any, device: torch.device, is_pin_memory: bool, ending_ids: Callable[[int], Sequence[int]]
    ) -> None:
        super().__init__(config, device, is_pin_memory)
        self._ending_ids = ending_ids
        self._masked: tuple[torch.Tensor, ...] = ()
        self._ids: dict[int, Sequence[int]] = {}

    def is_argmax_invariant(self) -> bool:
        """See `LogitsProcessor`."""
        return False

    def _state(self, params: SamplingParams, output_ids: list[int]) -> tuple[int, list[int]] | None:
        return (params.min_tokens, output_ids) if len(output_ids) < params.min_tokens else None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """See `LogitsProcessor`."""
        done = [row for row, (least, output_ids) in self._by_row.items() if len(output_ids) >= least]
        for row in done:
            del self._by_row[row]
        if done or self._changed:
            ids_by_row = {row: self._ending_ids(row) for row in self._by_row}
            self._masked = _places(ids_by_row, logits.shape[-1], self._device)
            self._changed = False
        logits[self._masked] = -math.inf
        return logits


_LARGEST_BIAS = 1e38
"""Beyond it the sum might not fit in float32; it decides between any two logits as it is."""


class LogitBias(_ByRow[dict[int, float]]):
    """Adds a request's biases to its logits."""

    def is_argmax_invariant(self) -> bool:
        """See `LogitsProcessor`."""
        return False

    def _state(self, params: SamplingParams, output_ids: list[int]) -> dict[int, float] | None:
        return params.logit_bias or None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """See `LogitsProcessor`."""
        if self._changed:
            vocab_size = logits.shape[-1]
            self._at = _places({row: list(bias) for row, bias in self._by_row.items()}, vocab_size, self._device)
            values = [b for bias in self._by_row.values() for i, b in bias.items() if 0 <= i < vocab_size]
            limited = np.clip(values, -_LARGEST_BIAS, _LARGEST_BIAS)
            self._values = torch.tensor(limited, dtype=torch.float32, device=self._device)
            self._changed = False
        logits[self._at] += self._values
        return logits


class MinP(_ByRow[float]):
    """Drops tokens whose probability is below `min_p` times that of the likeliest."""

    def is_argmax_invariant(self) -> bool:
        """See `LogitsProcessor`."""
        return True

    def _state(self, params: SamplingParams, output_ids: list[int]) -> float | None:
        return math.log(params.min_p) if params.min_p > 0 else None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """See `LogitsProcessor`."""
        if self._changed:
            log_min_p = np.full((len(logits), 1), -math.inf, dtype=np.float32)
            log_min_p[list(self._by_row), 0] = list(self._by_row.values())
            self._log_min_p = torch.from_numpy(log_min_p).to(self._device)
            self._changed = False
        limit = logits.amax(dim=-1, keepdim=True) + self._log_min_p
        return logits.masked_fill_(logits < limit, -math.inf)


class Processors:
    """Built-in processors, then those of plugins, split by whether they may change the likeliest token."""

    def __init__(self, processors: Sequence[LogitsProcessor]) -> None:
        self._all = list(processors)
        self._shifting = [p for p in processors if not p.is_argmax_invariant()]
        self._invariant = [p for p in processors if p.is_argmax_invariant()]

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Tell all of them, even when one fails: the next update builds on this one."""
        failure: Exception | None = None
        for processor in self._all:
            try:
                processor.update_state(batch_update)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def shift(self, logits: torch.Tensor, rows: np.ndarray, num_rows: int) -> torch.Tensor:
        """Apply those that may change the likeliest token. `rows` are the batch rows of `logits`, of `num_rows`."""
        return _apply(self._shifting, logits, rows, num_rows)

    def narrow(self, logits: torch.Tensor, rows: np.ndarray, num_rows: int) -> torch.Tensor:
        """Apply those that leave the likeliest token in its place."""
        return _apply(self._invariant, logits, rows, num_rows)

    @property
    def narrows(self) -> bool:
        """Whether `narrow` may do anything."""
        return not all(map(_is_idle, self._invariant))


def _apply(processors: list[LogitsProcessor], logits: torch.Tensor, rows: np.ndarray, num_rows: int) -> torch.Tensor:
    """Processors count by batch row, so rows that are missing or out of order are put in their places first."""
    busy = [p for p in processors if not _is_idle(p)]
    if not busy:
        return logits
    in_order = len(rows) == num_rows and bool((rows == np.arange(num_rows)).all())
    if in_order:
        for processor in busy:
            logits = processor.apply(logits)
        return logits
    index = torch.from_numpy(rows).to(logits.device)
    full = logits.new_zeros(num_rows, logits.shape[-1])
    full[index] = logits
    for processor in busy:
        full = processor.apply(full)
    return full[index]


def _is_idle(processor: LogitsProcessor) -> bool:
    if isinstance(processor, _ByRow):
        return processor.is_idle
    return isinstance(processor, AdapterLogitsProcessor) and not processor._by_row
