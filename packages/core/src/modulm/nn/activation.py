"""Activation functions, by the names that config.json uses. Stateless; used by `moe.py` and by models' MLPs."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from modulm.errors import CheckpointError, did_you_mean


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


def activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that config.json calls `name`. Raises `CheckpointError` on one we do not have."""
    if name not in ACTIVATIONS:
        raise CheckpointError(
            f"Activation {name!r} is not implemented.{did_you_mean(name, ACTIVATIONS)} "
            f"There are: {', '.join(ACTIVATIONS)}. The model's config.json asks for it; use a model without it."
        )
    return ACTIVATIONS[name]


class GatedActivation(nn.Module):
    """`act(gate) * up`, as in GLU variants (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._function = activation(name)

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return [num_tokens, size] for gate and up side by side, [num_tokens, 2 * size]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self._function(gate) * up
