"""What a fixed set of rows asks of sampling, as arrays, worked out once and used until batch or rows change.

Knows requests, no logits; `sampler.py` says in which order things are done, sampling kernels do them.
"""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from modulm.interfaces.sampling import DrawParameters, SamplingKernels
from modulm.worker.batch import Batch
from modulm.worker.masks import allowed_bits, biases, completing_ids, forbidden
from modulm.worker.penalties import PenalisedRows
from modulm.worker.randomness import mixed
from modulm.worker.row import NO_LOGPROBS, DraftedRow, Row

Drafted = Sequence[list[int]]
"""For each row of the logits, the tokens that are only drafted and stand before it."""
_LARGEST = np.finfo(np.float32).max


class SamplingState:
    """Rows of the logits are counted from 0 in the order of `rows`, the batch's; `drafted` is what stands before each.

    Attributes:
        rows: int64, the batch rows.
        greedy, random: int64, rows of the logits that take the likeliest token, and that draw.
        random_rows: int64, the batch rows of `random`.
        seeds: uint64, of `random`, as `uniform` takes them.
        draw: How `random` is drawn; None when it is empty.
        scored: int64, rows of the logits whose log-probabilities are asked for.
        num_top: int64, how many of the likeliest, for each of `scored`.
        shifts: Whether `shift` may do anything.
    """

    def __init__(self, batch: Batch, rows: np.ndarray, vocab_size: int, drafted: Drafted | None = None) -> None:
        parameters = batch.parameters[rows]
        sequences: list[Row | DraftedRow] = [batch.rows[row] for row in rows.tolist()]
        if drafted is not None:
            sequences = [
                DraftedRow(batch.rows[row], tokens) for row, tokens in zip(rows.tolist(), drafted, strict=True)
            ]
        self.rows = rows
        self._vocab_size = vocab_size
        is_random = parameters["temperature"] > 0
        self.greedy, self.random = np.flatnonzero(~is_random), np.flatnonzero(is_random)
        self.random_rows = rows[self.random]
        self._random_sequences = [sequences[at] for at in self.random.tolist()]
        self.seeds = mixed(parameters["seed"][self.random])
        self.draw = _draw_parameters(parameters[self.random]) if len(self.random) else None
        self.scored = np.flatnonzero(parameters["num_logprobs"] != NO_LOGPROBS)
        asked = parameters["num_logprobs"][self.scored]
        self.num_top = np.where(asked < 0, vocab_size, np.minimum(asked, vocab_size))
        self._read(sequences, parameters)
        self.shifts = bool(
            len(self._allowed_at)
            or self._bad_words
            or self._unfinished
            or self._biases is not None
            or self._penalised is not None
        )

    def _read(self, sequences: list[Row | DraftedRow], parameters: np.ndarray) -> None:
        requests = {at: row.request for at, row in enumerate(sequences)}
        allowed = {at: r.params.allowed_token_ids for at, r in requests.items() if r.params.allowed_token_ids}
        self._allowed_at = np.array(list(allowed), dtype=np.int64)
        self._allowed = allowed_bits(list(allowed.values()), self._vocab_size)
        self._bad_words = {at: row for at, row in enumerate(sequences) if row.bad_words}
        self._unfinished = {
            at: row for at, row in enumerate(sequences) if row.num_outputs < row.request.params.min_tokens
        }
        self._endings = self._ending_ids()
        by_row = {at: r.params.logit_bias for at, r in requests.items() if r.params.logit_bias}
        self._biases = biases(by_row, self._vocab_size)
        counts = {at: row.counts for at, row in enumerate(sequences) if row.counts is not None}
        self._penalised = None
        if counts:
            self._penalised = PenalisedRows(list(counts), list(counts.values()), parameters[list(counts)])

    def _ending_ids(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """The model's end-of-sequence ids are in the request, not in its parameters."""
        requests = {at: row.request for at, row in self._unfinished.items()}
        return forbidden({at: [*r.eos_token_ids, *r.stop_token_ids] for at, r in requests.items()}, self._vocab_size)

    def shift(self, kernels: SamplingKernels, logits: object) -> None:
        """Do, in place, what comes before the processors: allowed ids, bad words, minimum length, biases."""
        if len(self._allowed_at):
            kernels.mask(logits, self._allowed_at, self._allowed)
        if self._bad_words:
            ids_by_row = {at: completing_ids(row) for at, row in self._bad_words.items()}
            if (words := forbidden(ids_by_row, self._vocab_size)) is not None:
                kernels.bias(logits, *words)
        if self._unfinished:
            self._forbid_endings(kernels, logits)
        if self._biases is not None:
            kernels.bias(logits, *self._biases)

    def _forbid_endings(self, kernels: SamplingKernels, logits: object) -> None:
        done = [at for at, row in self._unfinished.items() if row.num_outputs >= row.request.params.min_tokens]
        if done:
            for at in done:
                del self._unfinished[at]
            self._endings = self._ending_ids()
        if self._endings is not None:
            kernels.bias(logits, *self._endings)

    def positions(self) -> np.ndarray:
        """Return at which position each of `random` draws its token, int64."""
        return np.array([row.num_tokens for row in self._random_sequences], dtype=np.int64)

    def penalise(self, kernels: SamplingKernels, logits: object) -> None:
        """Do, in place, what comes after the processors."""
        if self._penalised is not None:
            self._penalised.apply(kernels, logits)

    @cached_property
    def draw_scaled(self) -> DrawParameters:
        """How `random` is drawn from logits with temperature and min-p behind them."""
        assert self.draw is not None
        count = len(self.draw)
        return DrawParameters(
            temperature=np.ones(count, dtype=np.float32),
            log_min_p=np.full(count, -math.inf, dtype=np.float32),
            top_k=self.draw.top_k,
            top_p=self.draw.top_p,
        )


def _draw_parameters(parameters: np.ndarray) -> DrawParameters:
    with np.errstate(divide="ignore"):
        log_min_p = np.log(parameters["min_p"])
    return DrawParameters(
        # Infinity would make NaN of a forbidden token's -inf.
        temperature=parameters["temperature"].clip(max=_LARGEST).astype(np.float32),
        log_min_p=log_min_p.astype(np.float32),
        top_k=np.ascontiguousarray(parameters["top_k"]),
        top_p=np.ascontiguousarray(parameters["top_p"]),
    )
