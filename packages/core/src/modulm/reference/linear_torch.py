"""The kernel provider of last resort, plain torch: serves every kind of weight on every device.

Faster providers are asked first. torch is imported for the first weight: see `weights_torch.py`.
"""

from typing import ClassVar

from modulm.interfaces.kernels import KernelProvider, PackedWeight
from modulm.interfaces.quantization import CANONICAL, Dense, Weight
from modulm.interfaces.support import Accepted, Rejected, Support


class TorchKernels(KernelProvider):
    """The provider that always serves."""

    name: ClassVar[str] = "torch"

    def supports(self, op: str, weight: Weight, device_type: str) -> Support:
        """See base class."""
        if op not in ("linear", "embedding"):
            return Rejected(f"op {op!r} is unknown; it has linear and embedding")
        if type(weight) not in CANONICAL:
            return Rejected(f"{type(weight).__name__} is no canonical kind of weight")
        return Accepted("plain torch" if isinstance(weight, Dense) else "plain torch, dequantised at every call")

    def pack(self, weight: Weight, device: str, dtype: str) -> PackedWeight:
        """See base class. A dense weight is converted to `dtype`, once, where it has another."""
        from modulm.reference.weights_torch import packed

        return packed(weight, device, dtype)
