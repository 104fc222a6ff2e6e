"""The `triton` kernel provider: which weights it takes, without importing Triton or torch to say so.

Knows kinds of weights and kinds of devices, no layouts: `grouped.py` and `float8.py` pack and multiply. Without a GPU
the kernels run in Triton's interpreter, for tests, where TRITON_INTERPRET=1 is set.
"""

import os
from importlib.util import find_spec
from typing import ClassVar

from modulm.interfaces.kernels import KernelProvider, PackedWeight
from modulm.interfaces.quantization import Float8, GroupedInt, Reordered, Weight
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_kernels_triton.steps import float8_step, grouped_step

_OPS = ("linear", "embedding")


class TritonKernels(KernelProvider):
    """Products with `GroupedInt`, also in another order of inputs, and `Float8`; all else is left to others."""

    name: ClassVar[str] = "triton"

    def __init__(self) -> None:
        self._rounds = True

    def configure(self, *, num_threads: int | None = None, precision: str | None = None) -> None:
        """See base class. Without a wish activations are rounded to FP8 where that is faster."""
        self._rounds = precision != "exact"

    def describe(self) -> str:
        """See base class."""
        return "interpreted" if _interpreted() else ""

    def supports(self, op: str, weight: Weight, device_type: str) -> Support:
        """See base class. `device_type` is "cuda" for NVIDIA's and for AMD's GPUs, as in torch."""
        if device_type != "cuda" and not (device_type == "cpu" and _interpreted()):
            return Rejected(f"device type {device_type!r} is no GPU")
        if op not in _OPS:
            return Rejected(f"op {op!r} is unknown; it has {' and '.join(_OPS)}")
        if find_spec("triton") is None:
            return Rejected("Triton is not installed: pip install triton")
        kind = weight.weight if isinstance(weight, Reordered) else weight
        if isinstance(kind, GroupedInt):
            if grouped_step(kind) is None:
                return Rejected(f"groups of {kind.group_size} inputs are no multiple of 16")
            return Accepted(f"{kind.bits} bits, groups of {kind.group_size}")
        if isinstance(kind, Float8) and kind is weight:
            if float8_step(kind) is None:
                return Rejected(f"scales of {kind.block[1]} inputs are for no multiple of 16")
            return Accepted(f"scales of {kind.block[0]} x {kind.block[1]}")
        return Rejected(f"{type(weight).__name__} has no kernel here")

    def pack(self, weight: Weight, device: str, dtype: str) -> PackedWeight:
        """See base class."""
        if isinstance(weight, Float8):
            from modulm_kernels_triton.float8 import Float8Matrix

            return Float8Matrix(weight, device, rounds=self._rounds)
        from modulm_kernels_triton.grouped import GroupedMatrix

        order = weight.order if isinstance(weight, Reordered) else None
        inner = weight.weight if isinstance(weight, Reordered) else weight
        assert isinstance(inner, GroupedInt), "supports() comes before pack()"
        return GroupedMatrix(inner, order, device)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
