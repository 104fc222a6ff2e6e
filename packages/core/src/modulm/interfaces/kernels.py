"""Kernel providers (family `modulm.kernels`): pack a `Weight` once, at load, then multiply by it.

Everything runs in the engine's process, from one thread. One object is made per provider, without arguments, before
the weights are read. `worker/load.py` asks `supports` once per weight and packs it with the first that accepts; that
needs no torch where the provider does not. The packed weight is called by `nn/linear.py` and `nn/embedding.py`, once
per layer and step. `program` is asked once, after the model was traced, where `runs_programs` says so.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from modulm.interfaces.attention import AttentionBackend, BatchLayout
from modulm.interfaces.program import Graph
from modulm.interfaces.quantization import Weight
from modulm.interfaces.sampling import SamplingKernels
from modulm.interfaces.support import Support

if TYPE_CHECKING:
    import numpy as np
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


class StepProgram(Protocol):
    """A recorded model that runs in native code: a step is two calls. Called from one thread."""

    def forward(self, inputs: "Mapping[str, np.ndarray]", layouts: Sequence[BatchLayout]) -> None:
        """Compute hidden states of a step's tokens, write their keys and values to the cache.

        Args:
            inputs: int64 [num_tokens] by name, as `Graph.forward` names them.
            layouts: One per KV group.
        """

    def logits(self, index: "np.ndarray") -> "np.ndarray":
        """Return logits float32 [len(index), vocab_size] of some rows (int64) of the last `forward`.

        The array is written again by the next call, and may be changed until then.
        """


class KernelProvider(ABC):
    """A family of kernels for one kind of device.

    `runs_programs` says whether `program` may be asked, `program_dtypes` what activations its programs compute in, the
    best first: it is the dtype of a model for which nobody asked for one.
    """

    name: ClassVar[str]
    runs_programs: ClassVar[bool] = False
    program_dtypes: ClassVar[tuple[str, ...]] = ("float32",)

    def __init__(self) -> None:
        """Made without arguments, once per engine."""

    def configure(self, *, num_threads: int | None = None, precision: str | None = None) -> None:
        """Take note of what the user asks of all kernels. Called once, before the first `supports`.

        The default does nothing: right for kernels that run in torch's threads or on another device, and multiply
        activations as they are.

        Args:
            num_threads: CPU threads that may compute at once; None: as many as the provider thinks best.
            precision: "exact": activations are not rounded; "fast": they may be; None: what the provider thinks best.
        """

    def describe(self) -> str:
        """Return what a start-up line says of this machine: "instruction set avx2, 4 threads"; empty for nothing."""
        return ""

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

    def program(
        self,
        graph: Graph,
        *,
        weights: "Mapping[str, Sequence[PackedWeight]]",
        tensors: "Mapping[str, np.ndarray]",
        kv_caches: "Mapping[str, np.ndarray]",
        groups: Mapping[str, int],
        backends: Mapping[str, AttentionBackend],
    ) -> StepProgram:
        """Return what runs a recorded model.

        Args:
            graph: The model.
            weights: What its weights' names stand for: packed weights whose outputs stand side by side.
            tensors: What its other tensors' names stand for, in the graph's dtype or wider.
            kv_caches: Each layer's cache, as its backend shaped it; a 16-bit type is any numpy type of 16 bits.
            groups: Each layer's KV group: which of the layouts is its.
            backends: Each layer's attention backend.

        Raises:
            Unsupported: With the reason why not; the model then runs eagerly.
        """
        raise NotImplementedError

    def sampling(self) -> SamplingKernels | None:
        """Return kernels for logits on the host, or None; core's numpy serves where no provider has any."""
        return None
