"""Temperature, top-k, top-p and the draw itself, for the random rows of a batch.

A row's token depends on its logits, its parameters and its number in [0, 1), never on its neighbours: rows are grouped
by what they themselves ask, and each group looks at a fixed number of candidates. Sorting a whole vocabulary costs
milliseconds, finding its 512 likeliest tokens a tenth of one, and these nearly always hold enough.
"""

from typing import NamedTuple

import numpy as np
import torch

_WIDTHS = (64, 512)
_LARGEST = np.finfo(np.float32).max


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


class Draw:
    """The draw for a fixed set of rows, whose parameters it keeps as tensors.

    Args:
        parameters: Rows of `PARAMETERS`, one for each row of the logits.
        vocab_size: Columns of the logits.
        device: Where the logits are.
    """

    def __init__(self, parameters: np.ndarray, vocab_size: int, device: torch.device) -> None:
        self._device = device
        top_k, top_p = parameters["top_k"], parameters["top_p"]
        has_k, has_p = (top_k > 0) & (top_k < vocab_size), top_p < 1
        # Infinity would make NaN of a forbidden token's -inf.
        self._temperature = self._column(parameters["temperature"].clip(max=_LARGEST).astype(np.float32))
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

    def scale(self, logits: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        """Return (logits - best) / temperature, for processors that want to see them."""
        return logits.sub(best[:, None]).div_(self._temperature)

    def __call__(
        self, logits: torch.Tensor, best: torch.Tensor, numbers: np.ndarray, *, is_scaled: bool = False
    ) -> torch.Tensor:
        """Return one token id per row, int64 [n].

        Args:
            logits: float32 [n, vocab_size]; -inf is forbidden.
            best: [n], the largest of each row; where it is not finite the result means nothing.
            numbers: float64 [n] in [0, 1).
            is_scaled: Whether the logits come from `scale`, so that temperature is behind them.
        """
        rows = _Rows(
            logits=logits,
            best=best[:, None],
            temperature=torch.ones_like(self._temperature) if is_scaled else self._temperature,
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
        return token_ids


def _from_all(rows: _Rows) -> torch.Tensor:
    cumulated = rows.weights(rows.logits).cumsum(dim=-1, dtype=torch.float64)
    return _pick(cumulated, cumulated[:, -1:], rows.number)


def _from_candidates(rows: _Rows, width: int) -> tuple[torch.Tensor, np.ndarray | None]:
    """Return token ids, and which rows do not reach their top_p with so few candidates (None: no such row)."""
    candidates, ids = rows.logits.topk(width)
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


def _pick(cumulated: torch.Tensor, limit: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Return the first place where the cumulated weights pass number * limit; places of no weight are never it."""
    place = torch.searchsorted(cumulated, number * limit, right=True)[:, 0]
    return place.clamp_(max=cumulated.shape[-1] - 1)
