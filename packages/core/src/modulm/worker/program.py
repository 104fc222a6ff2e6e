"""How a forward pass is run. `Program` is the seam: eager torch, or a recorded program in native code.

Knows arrays of a step, no sequences and no sampling. `worker.py` builds it, `runner.py` calls it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from modulm.errors import Unsupported
from modulm.interfaces.attention import AttentionBackend
from modulm.interfaces.kernels import KernelProvider, StepProgram
from modulm.interfaces.model import ForwardBatch
from modulm.nn.rotary import SEQUENCE_LENGTHS, RotaryEmbedding
from modulm.worker.batch import Step
from modulm.worker.trace import trace
from modulm.worker.weights import parts_of


class Program(Protocol):
    """Runs one step's tensors. Called from one thread; nothing it returns need outlive the next `run`."""

    def run(self, step: Step) -> Any:
        """Return hidden states [num_tokens, hidden_size] of a step's tokens."""

    def logits(self, hidden: Any, index: np.ndarray) -> Any:
        """Return logits of some rows (int64) of what `run` returned, float32 [len(index), vocab_size], contiguous.

        An array where the program runs on the host, else a tensor; it may be changed.
        """


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Layers of one KV group that have one attention backend: `plan` is called once per step for all of them."""

    group: int
    backend: AttentionBackend
    layer_names: tuple[str, ...]


class EagerProgram:
    """Calls the torch model as it is written.

    Attributes:
        depends_on_length: Keys are rotated by the length of their sequence (dynamic NTK, LongRoPE), so that a prefix
            computed for one length does not serve another.
    """

    def __init__(
        self,
        model: Any,
        *,
        kv_caches: Mapping[str, torch.Tensor],
        planners: Sequence[Planner],
        device: torch.device,
    ) -> None:
        self._model = model
        self._kv_caches = kv_caches
        self._planners = planners
        self._device = device
        self.depends_on_length = any(
            module.needs_sequence_lengths for module in model.modules() if isinstance(module, RotaryEmbedding)
        )

    @torch.inference_mode()
    def run(self, step: Step) -> torch.Tensor:
        """See `Program.run`."""
        metadata: dict[str, Any] = {}
        for planner in self._planners:
            plan = planner.backend.plan(step.layouts[planner.group], self._device)
            metadata.update(dict.fromkeys(planner.layer_names, plan))
        extra = {}
        if self.depends_on_length:
            extra[SEQUENCE_LENGTHS] = torch.from_numpy(step.sequence_lengths).to(self._device)
        batch = ForwardBatch(
            positions=torch.from_numpy(step.positions).to(self._device),
            kv_caches=self._kv_caches,
            metadata=metadata,
            max_seq_len=int(step.positions.max()) + 1,
            extra=extra,
        )
        return self._model.forward(torch.from_numpy(step.token_ids).to(self._device), batch)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, index: np.ndarray) -> Any:
        """See `Program.logits`."""
        if len(index) < len(hidden):
            hidden = hidden[torch.from_numpy(index).to(self._device)]
        logits = self._model.compute_logits(hidden).float().contiguous()
        return logits.numpy() if self._device.type == "cpu" else logits


class RecordedProgram:
    """Runs a model's recording in native code."""

    def __init__(self, native: StepProgram) -> None:
        self._native = native

    def run(self, step: Step) -> None:
        """See `Program.run`; the hidden states stay where they are."""
        inputs = {"token_ids": step.token_ids, "positions": step.positions, SEQUENCE_LENGTHS: step.sequence_lengths}
        self._native.forward(inputs, step.layouts)

    def logits(self, hidden: None, index: np.ndarray) -> np.ndarray:
        """See `Program.logits`."""
        return self._native.logits(index)


def recorded(
    model: Any,
    kernels: Sequence[KernelProvider],
    *,
    kv_caches: Mapping[str, torch.Tensor],
    groups: Mapping[str, int],
    backends: Mapping[str, AttentionBackend],
) -> tuple[RecordedProgram, str]:
    """Record a model and let the first provider that can run it do so; return also what to say of it.

    Raises:
        Unsupported: The model cannot be recorded, or no provider runs it: the message gives all reasons.
    """
    recording = trace(model)
    arrays = {name: _host_array(cache) for name, cache in kv_caches.items()}
    tensors = {name: tensor.float().numpy() for name, tensor in recording.tensors.items() if tensor.is_cpu}
    refusals = []
    for provider in kernels:
        try:
            native = provider.program(
                recording.graph,
                weights={name: parts_of(packed) for name, packed in recording.weights.items()},
                tensors=tensors,
                kv_caches=arrays,
                groups=groups,
                backends=backends,
            )
        except Unsupported as error:
            refusals.append(f"{provider.name}: {error}")
            continue
        count = len(recording.graph.forward.ops) + len(recording.graph.logits.ops)
        return RecordedProgram(native), f"{count} operations, run by kernels {provider.name!r}"
    raise Unsupported(" ".join(refusals))


def _host_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a view of a tensor on the CPU; what numpy has no type for as integers of its size."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
