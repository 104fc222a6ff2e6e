"""The `cpu` kernel provider: asks the module that packs a kind of weight, and refuses what the processor cannot do.

Knows which module serves which kind, and no layout. The environment variable MODULM_KERNEL_PRECISION says how weights
are multiplied: `fast` (activations of 8 bits, large ones of 16; of bfloat16 beside such weights) or `exact` (float32
activations, dequantised weights).
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from modulm.interfaces.kernels import KernelProvider
from modulm.interfaces.program import Graph
from modulm.interfaces.quantization import (
    BlockFloat4,
    ChannelInt8,
    Codebook4,
    Dense,
    Float8,
    GroupedInt,
    Reordered,
    VectorCodebook,
    Weight,
)
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_kernels_cpu import describe, isa
from modulm_kernels_cpu.environment import chosen
from modulm_kernels_cpu.library import native

if TYPE_CHECKING:
    from modulm_kernels_cpu.packed_dense import PackedMatrix
    from modulm_kernels_cpu.program import NativeProgram
    from modulm_kernels_cpu.sampling import NativeSampling

_OPS = ("linear", "embedding")
_PRECISIONS = {"fast": "activations of 8 bits, large ones of 16", "exact": "float32 activations"}

_Q4, _INT8, _VECTORS, _DENSE = "packed_q4", "packed_int8", "packed_vectors", "packed_dense"
_MODULES: dict[type[Weight], str] = {
    GroupedInt: _Q4,
    Codebook4: _Q4,
    BlockFloat4: _Q4,
    ChannelInt8: _INT8,
    VectorCodebook: _VECTORS,
    Dense: _DENSE,
    Float8: _DENSE,
}
"""Kind -> module with `supports(weight)` and `pack(weight, precision)`."""


class CPUKernels(KernelProvider):
    """Kernels of this package; core's reference takes what they refuse."""

    name: ClassVar[str] = "cpu"
    runs_programs: ClassVar[bool] = True

    def __init__(self) -> None:
        self._isa = isa()
        self._asked: str | None = None

    def supports(self, op: str, weight: Weight, device_type: str) -> Support:
        """See base class. Raises `ConfigError` when MODULM_KERNEL_PRECISION is neither of its values."""
        how = self._asked or precision()
        if device_type != "cpu":
            return Rejected(f"device type {device_type!r} is not the processor")
        if op not in _OPS:
            return Rejected(f"op {op!r} is unknown; it has {' and '.join(_OPS)}")
        if self._isa == "generic" and not os.environ.get("MODULM_CPU_ISA"):
            return Rejected("this processor has neither AVX2 nor Arm's dot products, and torch is faster then")
        if isinstance(weight, Reordered):
            within = self.supports(op, weight.weight, device_type)
            return Accepted(f"{within.note}, inputs reordered") if isinstance(within, Accepted) else within
        name = _module_name(weight)
        if name is None:
            return Rejected(f"{type(weight).__name__} has no kernel here")
        answer: Support = _module(name).supports(weight, *((how,) if name == _DENSE else ()))
        return Accepted(f"{self._isa}, {how}: {answer.note}") if isinstance(answer, Accepted) else answer

    def describe(self) -> str:
        """See base class."""
        return describe()

    def configure(self, *, num_threads: int | None = None, precision: str | None = None) -> None:
        """See base class. None: as many threads as cores are allowed; as MODULM_KERNEL_PRECISION says."""
        if num_threads is not None:
            native().set_num_threads(num_threads)
        self._asked = precision

    def program(self, graph: Graph, **parts: Any) -> "NativeProgram":
        """See base class."""
        from modulm_kernels_cpu.program import NativeProgram

        return NativeProgram(graph, **parts)

    def sampling(self) -> "NativeSampling":
        """See base class."""
        from modulm_kernels_cpu.sampling import NativeSampling

        return NativeSampling()

    def pack(self, weight: Weight, device: str, dtype: str) -> "PackedMatrix":
        """See base class. Any of float32, float16 and bfloat16 may be multiplied by it, whatever `dtype` is."""
        if isinstance(weight, Reordered):
            from modulm_kernels_cpu.packed_reordered import ReorderedMatrix

            return ReorderedMatrix(self.pack(weight.weight, device, dtype), weight)
        name = _module_name(weight)
        assert name is not None, "supports() comes before pack()"
        packed: PackedMatrix = _module(name).pack(weight, self._asked or precision())
        return packed


def precision() -> str:
    """Return "fast" or "exact", as MODULM_KERNEL_PRECISION has it. Raises `ConfigError` on anything else."""
    return chosen("MODULM_KERNEL_PRECISION", _PRECISIONS)


def _module_name(weight: Weight) -> str | None:
    if isinstance(weight, GroupedInt) and weight.bits != 4:
        return _INT8
    return _MODULES.get(type(weight))


def _module(name: str) -> Any:
    return import_module(f"modulm_kernels_cpu.{name}")
