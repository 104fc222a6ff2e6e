"""How a forward pass is run. `Program` is the seam: eager torch, or a recorded program in native code.

Knows arrays of a step, no sequences and no sampling. `worker.py` builds it, `runner.py` calls it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from modulm.interfaces.attention import AttentionSpec
from modulm.interfaces.model import ForwardBatch
from modulm.nn.attention import Attention
from modulm.nn.rotary import SEQUENCE_LENGTHS, RotaryEmbedding
from modulm.worker.attention_layers import AttentionLayers, Planner
from modulm.worker.batch import Step


class Program(Protocol):
    """Runs one step's tensors. Called from one thread; nothing it returns need outlive the next `run`."""

    def run(self, step: Step) -> Any:
        """Return hidden states [num_tokens, hidden_size] of a step's tokens."""

    def logits(self, hidden: Any, index: np.ndarray) -> Any:
        """Return logits of some rows (int64) of what `run` returned, float32 [len(index), vocab_size], contiguous.

        An array where the program runs on the host, else a tensor; it may be changed.
        """


class EagerProgram:
    """Calls the torch model as it is written."""

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
        self._depends_on_length = depends_on_length(model)

    @torch.inference_mode()
    def run(self, step: Step) -> torch.Tensor:
        """See `Program.run`."""
        metadata: dict[str, Any] = {}
        for planner in self._planners:
            plan = planner.backend.plan(step.layouts[planner.group], self._device)
            metadata.update(dict.fromkeys(planner.layer_names, plan))
        extra = {}
        if self._depends_on_length:
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


def depends_on_length(model: nn.Module) -> bool:
    """Say whether keys are rotated by the length of their sequence (dynamic NTK, LongRoPE).

    Then a prefix computed for one length does not serve another.
    """
    return any(module.needs_sequence_lengths for module in model.modules() if isinstance(module, RotaryEmbedding))


def attention_specs(model: nn.Module) -> dict[str, AttentionSpec]:
    """Return what each attention layer asks for, by name, in the model's order."""
    return {layer.name: layer.spec for layer in model.modules() if isinstance(layer, Attention)}


def bind_attention(model: nn.Module, layers: AttentionLayers) -> None:
    """Give each attention layer its final specification and its backend."""
    for layer in model.modules():
        if isinstance(layer, Attention):
            layer.spec = layers.specs[layer.name]
            layer.bind(layers.backends[layer.name])
