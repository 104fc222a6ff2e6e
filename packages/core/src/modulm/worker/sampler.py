"""From logits to tokens: masks, processors, penalties, then the likeliest token or a draw; log-probabilities beside.

Order as in vLLM: raw log-probabilities; structured output; allowed ids; bad words; minimum length, biases, and
processors that may change the likeliest token; penalties; arg-max for greedy rows; for random rows temperature, min-p
and the other processors, top-k, top-p, draw. A row's result never depends on its neighbours. Knows the batch's rows, no
plans and no model; imports no torch: the arithmetic is the sampling kernels', on arrays or tensors as they have it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from modulm.interfaces.logits import BatchUpdate, LogitsProcessor
from modulm.interfaces.sampling import SamplingKernels, Scores
from modulm.types import TokenLogprobs
from modulm.worker.batch import Batch
from modulm.worker.logits import Processors
from modulm.worker.randomness import uniform
from modulm.worker.sampling_state import Drafted, SamplingState

Allowed = tuple[np.ndarray, np.ndarray]
"""Rows int64 [n], and masks uint32 [n, words] as `SamplingKernels.mask` takes them."""


class Sampled(NamedTuple):
    """Per row of the logits: the token or `NO_TOKEN`, and its log-probabilities where they are asked for."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None


class Sampler:
    """Samples for one batch.

    Args:
        config: Passed on to logits processors.
        batch: Whose rows are sampled.
        kernels: For logits as the program gives them, on host or device.
        device: Where logits are, as torch names it.
        processors: Classes of plugins and user.
    """

    def __init__(
        self,
        config: Any,
        batch: Batch,
        kernels: SamplingKernels,
        *,
        device: str = "cpu",
        processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        self._batch = batch
        self._kernels = kernels
        self._processors = Processors(config, device, processors)
        self._state: SamplingState | None = None
        self._key: tuple[int, list[int], int] | None = None

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Tell the processors how the batch changed; call after every `Batch.update`."""
        self._processors.update_state(batch_update)

    @property
    def knows_drafts(self) -> bool:
        """Whether it can tell what comes behind drafts: processors are told of tokens that came, and of no others."""
        return not (self._processors.shifts or self._processors.narrows)

    def sample(
        self, logits: Any, rows: list[int], allowed: Allowed | None = None, drafted: Drafted | None = None
    ) -> Sampled:
        """Return a token for each row of the logits.

        Args:
            logits: float32 [n, vocab_size], contiguous; used up.
            rows: The batch row of each.
            allowed: Rows of the logits with structured output, and a mask for each.
            drafted: For each, the drafts that stand before it; needs `knows_drafts`.
        """
        state = self._state_of(rows, logits.shape[-1], drafted)
        raw, raw_rows = logits, state.scored
        if state.shifts or self._processors.shifts or allowed is not None:
            if len(state.scored):
                raw, raw_rows = logits[state.scored], np.arange(len(state.scored))
            if allowed is not None:
                self._kernels.mask(logits, *allowed)
            logits = self._shift(logits, state)
        ids = self._choose(logits, state)
        token_ids: list[int] = ids.tolist()
        if not len(state.scored):
            return Sampled(token_ids, None)
        scored_ids = np.maximum(ids[state.scored], 0)
        entries = _entries(self._kernels.scores(raw, raw_rows, scored_ids, state.num_top), scored_ids, state.num_top)
        logprobs: list[TokenLogprobs | None] = [None] * len(token_ids)
        for at, entry in zip(state.scored.tolist(), entries, strict=True):
            logprobs[at] = entry
        return Sampled(token_ids, logprobs)

    def score(self, logits: Any, token_ids: np.ndarray, num_top: int) -> list[TokenLogprobs]:
        """Return log-probabilities of given tokens, one for each row of logits, and of the `num_top` (-1: all) best."""
        count, vocab_size = logits.shape
        tops = np.full(count, vocab_size if num_top < 0 else min(num_top, vocab_size), dtype=np.int64)
        ids = np.asarray(token_ids, dtype=np.int64)
        return _entries(self._kernels.scores(logits, np.arange(count), ids, tops), ids, tops)

    def _state_of(self, rows: list[int], vocab_size: int, drafted: Drafted | None) -> SamplingState:
        if drafted is not None:
            return SamplingState(self._batch, np.array(rows, dtype=np.int64), vocab_size, drafted)
        key = (self._batch.version, rows, vocab_size)
        if self._state is None or key != self._key:
            self._state = SamplingState(self._batch, np.array(rows, dtype=np.int64), vocab_size)
            self._key = key
        return self._state

    def _shift(self, logits: Any, state: SamplingState) -> Any:
        """Do everything that may change which token is the likeliest."""
        state.shift(self._kernels, logits)
        if self._processors.shifts:
            logits = self._processors.shift(logits, state.rows, len(self._batch))
        state.penalise(self._kernels, logits)
        return logits

    def _choose(self, logits: Any, state: SamplingState) -> np.ndarray:
        if state.draw is None:
            return self._kernels.argmax(logits, state.greedy)
        numbers = uniform(state.seeds, state.positions())
        if self._processors.narrows:
            narrowed = self._processors.narrow(logits, state.random, state.draw, state.random_rows, len(self._batch))
            drawn = self._kernels.draw(narrowed, np.arange(len(numbers)), state.draw_scaled, numbers)
        else:
            drawn = self._kernels.draw(logits, state.random, state.draw, numbers)
        if not len(state.greedy):
            return drawn
        ids = np.empty(len(logits), dtype=np.int64)
        ids[state.random] = drawn
        ids[state.greedy] = self._kernels.argmax(logits, state.greedy)
        return ids


def _entries(scores: Scores, token_ids: np.ndarray, num_top: np.ndarray) -> list[TokenLogprobs]:
    each = zip(
        token_ids.tolist(),
        scores.logprobs.tolist(),
        scores.ranks.tolist(),
        scores.top_ids,
        scores.top_logprobs,
        num_top.tolist(),
        strict=True,
    )
    return [
        TokenLogprobs(
            token_id=token_id,
            logprob=logprob,
            rank=rank,
            top_ids=top_ids[:count].tolist(),
            top_logprobs=top_logprobs[:count].tolist(),
        )
        for token_id, logprob, rank, top_ids, top_logprobs, count in each
    ]
