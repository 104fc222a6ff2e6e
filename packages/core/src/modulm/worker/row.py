"""One live sequence as the worker sees it: its request, its output so far, its sampling parameters as numbers.

Knows no tensors and not at which place of the batch it is. `batch.py` holds the rows.
"""

import numpy as np

from modulm.types import NewSequence, Request
from modulm.worker.randomness import as_seed
from modulm.worker.token_counts import TokenCounts

NO_LOGPROBS = -2
"""In `num_logprobs`: none are asked for (-1 is the whole vocabulary)."""

PARAMETERS = np.dtype(
    [
        ("temperature", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("repetition_penalty", np.float64),
        ("presence_penalty", np.float64),
        ("frequency_penalty", np.float64),
        ("num_logprobs", np.int64),
        ("seed", np.uint64),
    ]
)


class Row:
    """A sequence between its arrival and its end or preemption. `output_ids` is live: logits processors hold it."""

    __slots__ = ("bad_words", "counts", "num_prompt_logprobs", "output_ids", "prompt_ids", "request", "seed")

    def __init__(self, new: NewSequence, unseeded: int) -> None:
        request, params = new.request, new.request.params
        prompt_ids = self.prompt_ids = request.prompt_token_ids
        self.request: Request = request
        self.output_ids: list[int] = new.token_ids[len(prompt_ids) :]
        seed = request.seed if request.seed is not None else params.seed
        self.seed = as_seed(seed) if seed is not None else unseeded
        self.bad_words = [(words[:-1], words[-1]) for words in request.bad_words_token_ids if words]
        # A sequence that comes back with output has had its prompt scored before.
        self.num_prompt_logprobs = NO_LOGPROBS
        if params.prompt_logprobs is not None and not self.output_ids:
            self.num_prompt_logprobs = params.prompt_logprobs
        self.counts: TokenCounts | None = None
        if params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty:
            self.counts = TokenCounts(prompt_ids if params.repetition_penalty != 1 else [], self.output_ids)

    @property
    def num_outputs(self) -> int:
        """Tokens of the output."""
        return len(self.output_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output."""
        return len(self.prompt_ids) + len(self.output_ids)

    def token(self, position: int) -> int:
        """Return one of them."""
        num_prompt = len(self.prompt_ids)
        return self.prompt_ids[position] if position < num_prompt else self.output_ids[position - num_prompt]

    def tokens(self, start: int, end: int) -> list[int]:
        """Return those at positions start .. end - 1."""
        num_prompt = len(self.prompt_ids)
        return self.prompt_ids[start:end] + self.output_ids[max(0, start - num_prompt) : max(0, end - num_prompt)]

    def append(self, token_id: int) -> None:
        """Take in a sampled token."""
        self.output_ids.append(token_id)
        if self.counts is not None:
            self.counts.add(token_id)

    def parameters(self) -> tuple[float | int, ...]:
        """Return the fields of `PARAMETERS`."""
        params = self.request.params
        return (
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            NO_LOGPROBS if params.logprobs is None else params.logprobs,
            self.seed,
        )


class DraftedRow:
    """A sequence behind tokens that are only drafted, as far as sampling looks at it; for one step."""

    __slots__ = ("_drafted", "_row", "bad_words", "counts", "num_outputs", "num_tokens", "request")

    def __init__(self, row: Row, drafted: list[int]) -> None:
        self._row = row
        self._drafted = drafted
        self.request = row.request
        self.bad_words = row.bad_words
        self.num_tokens = row.num_tokens + len(drafted)
        self.num_outputs = row.num_outputs + len(drafted)
        self.counts = row.counts
        if row.counts is not None and drafted:
            self.counts = row.counts.copy()
            for token in drafted:
                self.counts.add(token)

    @property
    def output_ids(self) -> list[int]:
        """Output and drafts."""
        return self._row.output_ids + self._drafted
