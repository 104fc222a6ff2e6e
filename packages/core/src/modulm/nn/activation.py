"""Activation functions, by the names that config.json uses. Stateless; used by `moe.py` and by models' MLPs."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from modulm.errors import CheckpointError, did_you_mean
from modulm.interfaces.program import GatedActivation as GatedActivationOp
from modulm.nn.traced import Traced


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}
SYNONYMS = {"gelu_new": "gelu_pytorch_tanh", "swish": "silu"}
"""Names of one function: the second is what a recorded program calls it."""


def activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that config.json calls `name`. Raises `CheckpointError` on one we do not have."""
    if name not in ACTIVATIONS:
        raise CheckpointError(
            f"Activation {name!r} is not implemented.{did_you_mean(name, ACTIVATIONS)} "
            f"There are: {', '.join(ACTIVATIONS)}. The model's config.json asks for it; use a model without it."
        )
    return ACTIVATIONS[name]


def _swigluoai(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate = gate.clamp(max=7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-7.0, 7.0) + 1.0)


class GatedActivation(nn.Module):
    """`act(gate) * up`, as in GLU variants (Shazeer 2020, arXiv:2002.05202), or gpt-oss's "swigluoai"."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._function = None if name == "swigluoai" else activation(name)

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return [num_tokens, size] for gate and up side by side, [num_tokens, 2 * size]."""
        if isinstance(gate_up, Traced):
            (width,) = gate_up.row_shape
            name = SYNONYMS.get(self.name, self.name)
            return gate_up.apply(GatedActivationOp, shape=(width // 2,), function=name)
        gate, up = gate_up.chunk(2, dim=-1)
        return _swigluoai(gate, up) if self._function is None else self._function(gate) * up
