"""Batch-level logits processors (group `vllm.logits_processors`), with the semantics of vLLM's V1 interface.

An entry point of the group is the class itself. The worker builds one object in the engine's process, as
`Class(config, device, is_pin_memory)`, and calls it from one thread, once per step; the front end calls
`validate_params`, once per request, in its own process. State lives per batch row: `update_state` announces which
rows left, came or moved before `apply` sees the new batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar

from modulm.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

State = TypeVar("State")


class MoveDirectionality(Enum):
    """Whether a move is one way (the target is overwritten) or a swap."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]
"""(row, parameters, prompt token ids, output token ids). The output list is live: it grows as tokens are sampled."""
MovedRequest = tuple[int, int, MoveDirectionality]
"""(from row, to row, direction)."""


@dataclass(frozen=True)
class BatchUpdate:
    """How the batch changed since the last step. Process removed, then added, then moved; either may overwrite rows."""

    batch_size: int
    removed: Sequence[int]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """Changes the logits of a whole batch before sampling."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise `ValueError` to refuse a request's parameters (the client gets status 400)."""

    @abstractmethod
    def __init__(self, config: Any, device: "torch.device", is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Return the changed logits, float32 [num_rows, vocab_size]; in place is allowed, returning is required."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether the likeliest token always stays the likeliest: such processors are skipped for greedy rows."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Take note of the new batch; None when its composition did not change."""


def follow_rows(
    by_row: dict[int, State],
    update: BatchUpdate,
    new: Callable[[SamplingParams, list[int] | None, list[int]], State | None],
) -> None:
    """Bring `by_row`, what a processor keeps for some of the rows, up to date: removed, added, then moved rows.

    `new` gets parameters, prompt ids and output ids of an added request, and returns what to keep for it, or None.
    """
    for row in update.removed:
        by_row.pop(row, None)
    for row, params, prompt_ids, output_ids in update.added:
        by_row.pop(row, None)
        state = new(params, prompt_ids, output_ids)
        if state is not None:
            by_row[row] = state
    for source, target, direction in update.moved:
        moved, replaced = by_row.pop(source, None), by_row.pop(target, None)
        if moved is not None:
            by_row[target] = moved
        if direction is MoveDirectionality.SWAP and replaced is not None:
            by_row[source] = replaced


RequestLogitsProcessor = Callable[..., "torch.Tensor"]
"""(output ids, row logits) -> row logits, or (prompt ids, output ids, row logits) -> row logits."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Wraps per-request callables: implement `is_argmax_invariant` and `new_req_logits_processor`."""

    def __init__(self, config: Any, device: "torch.device", is_pin_memory: bool) -> None:
        self._by_row: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """Return the callable for a new request, or None when it wants none."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow removed, added and moved rows."""
        if batch_update is not None:
            follow_rows(self._by_row, batch_update, self._bound)

    def _bound(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> Callable[["torch.Tensor"], "torch.Tensor"] | None:
        processor = self.new_req_logits_processor(params)
        return None if processor is None else _bind(processor, prompt_ids, output_ids)

    def apply(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Apply each row's callable to its row."""
        for row, processor in self._by_row.items():
            logits[row] = processor(logits[row])
        return logits


def _bind(
    processor: RequestLogitsProcessor, prompt_ids: list[int] | None, output_ids: list[int]
) -> Callable[["torch.Tensor"], "torch.Tensor"]:
    import inspect

    if len(inspect.signature(processor).parameters) == 3:
        return lambda row: processor(prompt_ids, output_ids, row)
    return lambda row: processor(output_ids, row)
