"""Sampling with torch, for logits on a device other than the host: all rows at once, in few and large operations.

A row's token depends on its logits, its parameters and its number in [0, 1), never on its neighbours: rows are grouped
by what they themselves ask, and each group looks at a fixed number of candidates. Sorting a whole vocabulary costs
milliseconds, finding its 512 likeliest tokens a tenth of one, and these nearly always hold enough.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from modulm.interfaces.sampling import NO_TOKEN, DrawParameters, Penalties, Scores

_WIDTHS = (64, 512)
_FEW = 32
"""Up to this many of the likeliest are found together, whatever each row asks."""


class TorchSampling:
    """See `SamplingKernels`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._drawn: tuple[DrawParameters, int, _Draw] | None = None

    @torch.inference_mode()
    def argmax(self, logits: torch.Tensor, rows: np.ndarray) -> np.ndarray:
        """See `SamplingKernels`."""
        best, ids = self._picked(logits, rows).max(dim=-1)
        return self._host(ids.masked_fill_(~best.isfinite(), NO_TOKEN))

    @torch.inference_mode()
    def mask(self, logits: torch.Tensor, rows: np.ndarray, bitmask: np.ndarray) -> None:
        """See `SamplingKernels`."""
        words = self._tensor(np.ascontiguousarray(bitmask).view(np.int32))[:, :, None]
        bits = (words >> torch.arange(32, dtype=torch.int32, device=self._device)) & 1
        is_forbidden = bits.reshape(len(rows), -1)[:, : logits.shape[-1]] == 0
        logits[self._tensor(rows)] = logits[self._tensor(rows)].masked_fill_(is_forbidden, -math.inf)

    @torch.inference_mode()
    def bias(self, logits: torch.Tensor, rows: np.ndarray, ids: np.ndarray, values: np.ndarray) -> None:
        """See `SamplingKernels`."""
        at = self._tensor(rows), self._tensor(ids)
        shifts = self._tensor(values)
        logits[at] = torch.where(shifts == -math.inf, shifts, logits[at] + shifts)

    @torch.inference_mode()
    def penalise(self, logits: torch.Tensor, rows: np.ndarray, penalties: Penalties) -> None:
        """See `SamplingKernels`."""
        lengths = np.diff(penalties.starts)
        at = self._tensor(np.repeat(rows, lengths)), self._tensor(penalties.ids)
        occurred = self._tensor(penalties.counts)
        repetition, frequency, presence = self._tensor(np.repeat(penalties.factors, lengths, axis=1))
        values = logits[at]
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= frequency * occurred
        values -= presence * (occurred > 0)
        logits[at] = values.clamp_(max=torch.finfo(torch.float32).max)

    @torch.inference_mode()
    def draw(
        self, logits: torch.Tensor, rows: np.ndarray, parameters: DrawParameters, numbers: np.ndarray
    ) -> np.ndarray:
        """See `SamplingKernels`."""
        vocab_size = logits.shape[-1]
        if self._drawn is None or self._drawn[0] is not parameters or self._drawn[1] != vocab_size:
            self._drawn = parameters, vocab_size, _Draw(parameters, vocab_size, self._device)
        return self._host(self._drawn[2](self._picked(logits, rows), numbers))

    @torch.inference_mode()
    def scores(self, logits: torch.Tensor, rows: np.ndarray, token_ids: np.ndarray, num_top: np.ndarray) -> Scores:
        """See `SamplingKernels`."""
        picked = self._picked(logits, rows)
        logprobs = picked.log_softmax(dim=-1)
        chosen = self._tensor(token_ids)[:, None]
        ranks = (picked > picked.gather(1, chosen)).sum(dim=-1) + 1
        few = min(_FEW, logits.shape[-1])
        top_ids = np.zeros((len(rows), int(num_top.max(initial=0))), dtype=np.int64)
        top_logprobs = np.zeros(top_ids.shape, dtype=np.float32)
        widths = np.where((num_top > 0) & (num_top <= few), few, num_top)
        for width in set(widths.tolist()) - {0}:
            at = np.flatnonzero(widths == width)
            _, ids = _likeliest(self._picked(picked, at), width)
            values = self._picked(logprobs, at).gather(1, ids)
            kept = min(width, top_ids.shape[1])
            top_ids[at, :kept], top_logprobs[at, :kept] = self._host(ids[:, :kept]), self._host(values[:, :kept])
        return Scores(self._host(logprobs.gather(1, chosen)[:, 0]), self._host(ranks), top_ids, top_logprobs)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    def _picked(self, logits: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        """Return some of the rows; all of them, in order, cost no copy."""
        if len(rows) == len(logits) and bool((rows == np.arange(len(rows))).all()):
            return logits
        return logits[self._tensor(rows)]

    def _host(self, tensor: torch.Tensor) -> np.ndarray:
        return tensor.cpu().numpy()


class _Rows(NamedTuple):
    """Rows of logits with what the draw needs of each: all [n, 1] but the logits, which are [n, vocab_size]."""

    logits: torch.Tensor
    best: torch.Tensor
    temperature: torch.Tensor
    number: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    only_p: torch.Tensor

    def take(self, at: np.ndarray) -> "_Rows":
        """Return some of the rows; all of them costs no copy."""
        if len(at) == len(self.logits):
            return self
        index = torch.from_numpy(at).to(self.logits.device)
        return _Rows(*(tensor[index] for tensor in self))

    def weights(self, logits: torch.Tensor) -> torch.Tensor:
        """Softmax before its division; `best` is taken off first so that tiny temperatures cannot overflow."""
        return logits.sub(self.best).div_(self.temperature).exp_()


class _Draw:
    """The draw for a fixed set of rows, whose parameters it keeps as tensors."""

    def __init__(self, parameters: DrawParameters, vocab_size: int, device: torch.device) -> None:
        self._device = device
        top_k, top_p = parameters.top_k, parameters.top_p
        has_k, has_p = (top_k > 0) & (top_k < vocab_size), top_p < 1
        self._temperature = self._column(parameters.temperature)
        has_min_p = bool((parameters.log_min_p > -np.inf).any())
        self._log_min_p = self._column(parameters.log_min_p) if has_min_p else None
        self._top_k = self._column(np.where(has_k, top_k, vocab_size))
        self._top_p = self._column(top_p)
        self._only_p = self._column(has_p & ~has_k)
        self._whole = np.flatnonzero(~(has_k | has_p))
        small, large = (min(width, vocab_size) for width in _WIDTHS)
        is_small = has_k & (top_k <= small)
        is_large = ~is_small & ((has_p & ~has_k) | (has_k & (top_k <= large)))
        groups = ((is_small, small), (is_large, large), (has_k & ~is_small & ~is_large, vocab_size))
        self._groups = [(np.flatnonzero(rows), width) for rows, width in groups if rows.any()]

    def _column(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)[:, None]

    def __call__(self, logits: torch.Tensor, numbers: np.ndarray) -> torch.Tensor:
        """Return one token id per row, int64 [n]."""
        best = logits.amax(dim=-1, keepdim=True)
        if self._log_min_p is not None:
            is_dropped = logits.sub(best).div_(self._temperature) < self._log_min_p
            logits = logits.masked_fill(is_dropped, -math.inf)
        rows = _Rows(
            logits=logits,
            best=best,
            temperature=self._temperature,
            number=self._column(numbers),
            top_k=self._top_k,
            top_p=self._top_p,
            only_p=self._only_p,
        )
        token_ids = torch.zeros(len(logits), dtype=torch.int64, device=self._device)
        for at, width in self._groups:
            picked, is_short = _from_candidates(rows.take(at), width)
            if is_short is not None:
                again = np.flatnonzero(is_short)
                picked[again], _ = _from_candidates(rows.take(at[again]), logits.shape[-1])
            token_ids[at] = picked
        if len(self._whole):
            token_ids[self._whole] = _from_all(rows.take(self._whole))
        return token_ids.masked_fill_(~best[:, 0].isfinite(), NO_TOKEN)


def _from_all(rows: _Rows) -> torch.Tensor:
    cumulated = rows.weights(rows.logits).cumsum(dim=-1, dtype=torch.float64)
    return _pick(cumulated, cumulated[:, -1:], rows.number)


def _from_candidates(rows: _Rows, width: int) -> tuple[torch.Tensor, np.ndarray | None]:
    """Return token ids, and which rows do not reach their top_p with so few candidates (None: no such row)."""
    candidates, ids = _likeliest(rows.logits, width)
    cumulated = rows.weights(candidates).cumsum(dim=-1, dtype=torch.float64)
    total = cumulated.gather(1, rows.top_k.clamp(max=width) - 1)
    is_short = None
    if width < rows.logits.shape[-1] and bool(rows.only_p.any()):
        whole = rows.weights(rows.logits).sum(dim=-1, dtype=torch.float64, keepdim=True)
        total = torch.where(rows.only_p, whole, total)
        short = rows.only_p & (cumulated[:, -1:] < rows.top_p * total)
        is_short = short[:, 0].cpu().numpy() if bool(short.any()) else None
    # A token stays while those before it have not reached top_p; of the top k taken whole, none after them does.
    before = torch.nn.functional.pad(cumulated[:, :-1], (1, 0))
    kept = before < rows.top_p * total
    limit = cumulated.gather(1, kept.sum(dim=-1, keepdim=True).clamp(min=1) - 1)
    return ids.gather(1, _pick(cumulated, limit, rows.number)[:, None])[:, 0], is_short


def _likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` largest of each row, in descending order, and their ids; of equal ones the lower id first."""
    if count == logits.shape[-1]:
        return logits.sort(dim=-1, descending=True, stable=True)
    logits = logits.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)  # a row of NaN means nothing anyway
    least = logits.topk(count).values[:, -1:]
    is_larger, is_equal = logits > least, logits == least
    is_first = is_equal.cumsum(dim=-1) <= count - is_larger.sum(dim=-1, keepdim=True)
    ids = (is_larger | (is_equal & is_first)).nonzero()[:, 1].reshape(len(logits), count)
    values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _pick(cumulated: torch.Tensor, limit: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Return the first place where the cumulated weights pass number * limit; places of no weight are never it."""
    place = torch.searchsorted(cumulated, number * limit, right=True)[:, 0]
    return place.clamp_(max=cumulated.shape[-1] - 1)
