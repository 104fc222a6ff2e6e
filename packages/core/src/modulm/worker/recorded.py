"""A recorded model, run by a kernel provider's native code: a step without torch.

Knows arrays of a step, no sequences and no sampling. `trace.py` records; `program.py` is the eager counterpart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from modulm.errors import Unsupported
from modulm.interfaces.kernels import KernelProvider, PackedWeight, StepProgram
from modulm.interfaces.program import Graph
from modulm.worker.attention_layers import AttentionLayers
from modulm.worker.batch import Step


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A graph, and what its names stand for in this process: packed weights (side by side), float32 arrays."""

    graph: Graph
    weights: Mapping[str, Sequence[PackedWeight]]
    tensors: Mapping[str, np.ndarray]

    @property
    def depends_on_length(self) -> bool:
        """Whether keys are rotated by the length of their sequence."""
        return "sequence_lengths" in self.graph.forward.inputs


class RecordedProgram:
    """See `Program` in `program.py`; hidden states stay in native memory."""

    def __init__(self, native: StepProgram) -> None:
        self._native = native

    def run(self, step: Step) -> None:
        """See `Program.run`."""
        inputs = {"token_ids": step.token_ids, "positions": step.positions, "sequence_lengths": step.sequence_lengths}
        self._native.forward(inputs, step.layouts)

    def logits(self, hidden: None, index: np.ndarray) -> np.ndarray:
        """See `Program.logits`."""
        return self._native.logits(index)


def run_natively(
    recorded: Recorded,
    kernels: Sequence[KernelProvider],
    *,
    layers: AttentionLayers,
    groups: Mapping[str, int],
    kv_caches: Mapping[str, np.ndarray],
) -> tuple[RecordedProgram, str]:
    """Let the first provider that can run a recorded model do so; return also what to say of it.

    Raises `Unsupported` when there is none: the message gives all reasons.
    """
    graph = replace(recorded.graph, layers=layers.specs)
    refusals = []
    for provider in kernels:
        try:
            native = provider.program(
                graph,
                weights=recorded.weights,
                tensors=recorded.tensors,
                kv_caches=kv_caches,
                groups=groups,
                backends=layers.backends,
            )
        except Unsupported as error:
            refusals.append(f"{provider.name}: {error}")
            continue
        count = len(graph.forward.ops) + len(graph.logits.ops)
        return RecordedProgram(native), f"{count} operations, run by kernels {provider.name!r}"
    raise Unsupported(" ".join(refusals))
