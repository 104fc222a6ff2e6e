"""Logits processors of plugins and user, in order, split by whether they may change the likeliest token.

They follow the public contract (`interfaces/logits.py`): tensors of torch, state by batch row, told of rows that leave,
come and move. torch is imported when there is such a processor, not before; logits on the host are lent to it as they
are. What the engine itself does to logits needs none of this: see `sampling_state.py`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from modulm.interfaces.logits import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor
from modulm.interfaces.sampling import DrawParameters
from modulm.plugins.choose import run
from modulm.plugins.families import LOGITS

if TYPE_CHECKING:
    import torch


class Processors:
    """All processors of one engine.

    Args:
        config: Passed on to them.
        device: Where logits are, as torch names it.
        classes: What to build, in order.
    """

    def __init__(self, config: Any, device: str, classes: Sequence[type[LogitsProcessor]]) -> None:
        self._all: list[LogitsProcessor] = []
        if classes:
            import torch

            self._all = [_made(cls, config, torch.device(device)) for cls in classes]
        self._shifting = [p for p in self._all if not p.is_argmax_invariant()]
        self._invariant = [p for p in self._all if p.is_argmax_invariant()]

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

    @property
    def shifts(self) -> bool:
        """Whether `shift` may do anything."""
        return not all(map(_is_idle, self._shifting))

    @property
    def narrows(self) -> bool:
        """Whether `narrow` may do anything."""
        return not all(map(_is_idle, self._invariant))

    def shift(self, logits: Any, rows: np.ndarray, num_rows: int) -> Any:
        """Apply those that may change the likeliest token; the result is of the logits' kind.

        Args:
            logits: float32 [n, vocab_size], array or tensor; used up.
            rows: The batch row of each, of `num_rows`.
        """
        import torch

        with torch.inference_mode():
            return _like(logits, _apply(self._shifting, _tensor(logits), rows, num_rows))

    def narrow(self, logits: Any, at: np.ndarray, parameters: DrawParameters, rows: np.ndarray, num_rows: int) -> Any:
        """Return rows `at` of the logits, best taken off, by temperature and min-p, then by the other processors."""
        import torch

        with torch.inference_mode():
            tensor = _tensor(logits)
            device = tensor.device
            scaled = tensor[torch.from_numpy(at).to(device)]
            scaled.sub_(scaled.amax(dim=-1, keepdim=True))
            scaled.div_(torch.from_numpy(parameters.temperature).to(device)[:, None])
            scaled.masked_fill_(scaled < torch.from_numpy(parameters.log_min_p).to(device)[:, None], -torch.inf)
            return _like(logits, _apply(self._invariant, scaled, rows, num_rows))


def _made(cls: type[LogitsProcessor], config: Any, device: "torch.device") -> LogitsProcessor:
    return run(LOGITS, f"{cls.__module__}:{cls.__qualname__}", "making it", cls, config, device, False)


def _tensor(logits: Any) -> "torch.Tensor":
    import torch

    return torch.from_numpy(logits) if isinstance(logits, np.ndarray) else logits


def _like(logits: Any, result: "torch.Tensor") -> Any:
    """Return a processor's result as an array where the logits are one."""
    return result.float().contiguous().numpy() if isinstance(logits, np.ndarray) else result


def _apply(
    processors: list[LogitsProcessor], logits: "torch.Tensor", rows: np.ndarray, num_rows: int
) -> "torch.Tensor":
    """Processors count by batch row, so rows that are missing or out of order are put in their places first."""
    import torch

    busy = [p for p in processors if not _is_idle(p)]
    if not busy:
        return logits
    if len(rows) == num_rows and bool((rows == np.arange(num_rows)).all()):
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
    return isinstance(processor, AdapterLogitsProcessor) and not processor._by_row
