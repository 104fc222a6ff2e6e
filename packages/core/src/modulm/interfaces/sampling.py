"""Sampling kernels: what a sampler does with whole rows of logits. One protocol for the host and for devices.

Called by `worker/sampler.py`, which knows what each sequence asked for and in which order it is done. Core has two
implementations in `reference/`, numpy's for arrays on the host and torch's for tensors on a device; a kernel provider
may bring a faster one for the host (`KernelProvider.sampling`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np

NO_TOKEN = -1
"""Stands for a row in which no token can be chosen."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawParameters:
    """How some rows are drawn; the same object for as long as the same rows ask the same, so it may key a cache.

    Attributes:
        temperature: float32 [n], finite and above 0.
        log_min_p: float32 [n], at most 0: a token whose (logit - best) / temperature is below it is dropped.
        top_k: int64 [n]; 0, and as many as the vocabulary has or more, keep all.
        top_p: float64 [n] in (0, 1]; 1 keeps all.
    """

    temperature: "np.ndarray"
    log_min_p: "np.ndarray"
    top_k: "np.ndarray"
    top_p: "np.ndarray"

    def __len__(self) -> int:
        return len(self.top_k)


class Penalties(NamedTuple):
    """Which tokens of some rows are penalised, and how much.

    Attributes:
        starts: int64 [n + 1], ascending from 0; row i's tokens are starts[i] .. starts[i + 1] - 1.
        ids: int64 [starts[n]], no token twice in a row.
        counts: float32 [starts[n]], how often each occurs in the output.
        factors: float32 [3, n]: repetition (above 0, finite), frequency, presence.
    """

    starts: "np.ndarray"
    ids: "np.ndarray"
    counts: "np.ndarray"
    factors: "np.ndarray"


class Scores(NamedTuple):
    """Log-probabilities of some rows, arrays on the host.

    Attributes:
        logprobs: float32 [n], of the given tokens.
        ranks: int64 [n], each one's: 1 and the number of larger logits.
        top_ids, top_logprobs: int64 and float32 [n, k], the likeliest first, of equal ones the lower id first; k is the
            largest number that a row asks for, and what stands behind a row's own number means nothing.
    """

    logprobs: "np.ndarray"
    ranks: "np.ndarray"
    top_ids: "np.ndarray"
    top_logprobs: "np.ndarray"


class SamplingKernels(Protocol):
    """Works on `logits`, float32 [num_rows, vocab_size], contiguous: a numpy array, or a tensor on the kernels' device.

    Everything else is a numpy array on the host. `rows` is int64 [n], rows of the logits, none twice. -inf forbids a
    token. A row's result depends on nothing but that row and what is given for it, whatever the number of threads; sums
    are in float64. Called from one thread. Arguments of other shapes or types, and ids and rows out of range, raise
    `ValueError` or `TypeError` where that is cheap to see.
    """

    def argmax(self, logits: Any, rows: "np.ndarray") -> "np.ndarray":
        """Return the first of each row's largest logits, int64 [n]; `NO_TOKEN` for NaN, +inf, or nothing but -inf."""

    def mask(self, logits: Any, rows: "np.ndarray", bitmask: "np.ndarray") -> None:
        """Forbid, in place, every token whose bit is 0.

        Args:
            bitmask: uint32 [n, ceil(vocab_size / 32)]; token t is bit t % 32 of word t // 32.
        """

    def bias(self, logits: Any, rows: "np.ndarray", ids: "np.ndarray", values: "np.ndarray") -> None:
        """Add values (float32 [m]) in place to logits[rows, ids]; no pair twice. -inf forbids whatever stands there.

        Args:
            rows, ids: int64 [m]; a row may occur many times.
        """

    def penalise(self, logits: Any, rows: "np.ndarray", penalties: Penalties) -> None:
        """Apply penalties in place to listed tokens.

        A logit x becomes x / repetition where x > 0, else x * repetition; then frequency * count is taken off, and
        presence where count > 0; the result stays below infinity.
        """

    def draw(self, logits: Any, rows: "np.ndarray", parameters: DrawParameters, numbers: "np.ndarray") -> "np.ndarray":
        """Return a token for each row, int64 [n]; `NO_TOKEN` as in `argmax`. The logits stay as they are.

        Weights are exp((logit - best) / temperature), in float32, of the tokens that min-p leaves. With top-k or top-p,
        tokens are in descending order of their logits, equal ones in the order of ids: the first `top_k` stay, and of
        those each one before which less than `top_p` of their weight stands (without top-k: of the whole row's).
        Otherwise the order is that of ids. The result is the first token at which the cumulated weight passes
        number * weight of all that stay.

        Args:
            numbers: float64 [n] in [0, 1).
        """

    def scores(self, logits: Any, rows: "np.ndarray", token_ids: "np.ndarray", num_top: "np.ndarray") -> Scores:
        """Return log-probabilities of given tokens (int64 [n]) and of the likeliest ones.

        Args:
            num_top: int64 [n], from 0 to vocab_size: how many of the likeliest.
        """
