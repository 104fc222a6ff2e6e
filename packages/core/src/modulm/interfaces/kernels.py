"""Kernel providers (family `modulm.kernels`): pack a `Weight` once, at load, then multiply by it.

Called by `nn/linear.py` and `nn/embedding.py` in the worker. `supports` is asked once per weight at load; a packed
weight is called once per layer and step.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

from modulm.interfaces.quantization import Weight
from modulm.interfaces.support import Support

if TYPE_CHECKING:
    import torch


class PackedWeight(Protocol):
    """A weight in a kernel's own layout."""

    def linear(self, x: "torch.Tensor") -> "torch.Tensor":
        """Return x @ W.T for x [num_tokens, in_features]; the result has x's dtype, [num_tokens, out_features]."""

    def rows(self, index: "torch.Tensor", dtype: "torch.dtype") -> "torch.Tensor":
        """Return W[index] as [len(index), in_features] (embedding look-up); index is int64."""

    @property
    def size_bytes(self) -> int:
        """Bytes of memory this weight holds."""


class KernelProvider(ABC):
    """A family of kernels for one kind of device."""

    name: ClassVar[str]

    def configure(self, *, num_threads: int | None) -> None:
        """Take note of how many CPU threads may compute at once; None: as many as the provider thinks best.

        Called once, before the first `supports`. The default does nothing: right for kernels that run in torch's
        threads or on another device.
        """

    @abstractmethod
    def supports(self, op: str, weight: Weight, device_type: str) -> Support:
        """Say whether this provider serves `op` ("linear" or "embedding") for such a weight on such a device."""

    @abstractmethod
    def pack(self, weight: Weight, device: "torch.device", dtype: "torch.dtype") -> PackedWeight:
        """Move the weight into this provider's layout. `dtype` is that of the activations. May alias its tensors."""
