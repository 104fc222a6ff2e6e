"""The step that is being computed, for whoever is called in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from modulm.interfaces.model import ForwardBatch

_current: "ContextVar[ForwardContext | None]" = ContextVar("vllm_forward_context", default=None)


@dataclass(frozen=True)
class ForwardContext:
    """One step, as modulm's layers are told it."""

    batch: "ForwardBatch"

    @property
    def attn_metadata(self) -> dict[str, Any]:
        """What each attention layer's backend made of the step, by layer's name."""
        return dict(self.batch.metadata)

    def batch_at(self, positions: "torch.Tensor") -> "ForwardBatch":
        """Return the step with these positions, which a plugin may have changed."""
        return self.batch if positions is self.batch.positions else replace(self.batch, positions=positions)


@contextmanager
def set_forward_context(batch: "ForwardBatch") -> Iterator[None]:
    """Make `get_forward_context` return this step inside."""
    token = _current.set(ForwardContext(batch))
    try:
        yield
    finally:
        _current.reset(token)


def get_forward_context() -> ForwardContext:
    """Return the step that is being computed; raises `RuntimeError` outside of one."""
    found = _current.get()
    if found is None:
        raise RuntimeError("No forward pass is being computed here. Call this in a model's or a backend's forward().")
    return found
