"""Kernel providers (family `modulm.kernels`): pack a `Weight` once, at load, then multiply by it.

Packing is asked for by `worker/load.py`, and needs no torch where the provider does not; `supports` is asked once per
weight. The packed weight is called by `nn/linear.py` and `nn/embedding.py`, once per layer and step.
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

    @abstractmethod
    def supports(self, op: str, weight: Weight, device_type: str) -> Support:
        """Say whether this provider serves `op` ("linear" or "embedding") for such a weight on such a device."""

    @abstractmethod
    def pack(self, weight: Weight, device: str, dtype: str) -> PackedWeight:
        """Bring the weight into this provider's layout, on `device`. It may alias the weight's arrays.

        Args:
            weight: One that `supports` accepted.
            device: As torch names it: "cpu", "cuda:0".
            dtype: That of the activations: "float32", "bfloat16", "float16".
        """
