"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467)."""

import torch
from torch import nn

from modulm.interfaces.model import WeightSource
from modulm.interfaces.program import RMSNorm as RMSNormOp
from modulm.nn.traced import Traced


class RMSNorm(nn.Module):
    """`x / rms(x) * w` over the last dimension, or `* (1 + w)` with `unit_offset` (Gemma).

    Computed in float32 and rounded once, at the end. transformers' Llama rounds before it multiplies by the weight,
    which differs in the last bit of a 16-bit result.
    """

    weight: torch.Tensor

    def __init__(self, size: int, eps: float, *, unit_offset: bool = False) -> None:
        super().__init__()
        self.size = size
        self.eps = eps
        self.unit_offset = unit_offset

    def load(self, name: str, source: WeightSource) -> None:
        """Read `<name>.weight` [size]. Raises `CheckpointError`."""
        self.weight = source.tensor(f"{name}.weight", (self.size,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the same shape and dtype for x [..., size]."""
        if isinstance(x, Traced):
            name = x.recorder.tensor(self, self.weight)
            return x.apply(RMSNormOp, weight=name, eps=self.eps, unit_offset=self.unit_offset)
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        weight = self.weight.float()
        return (normed * (1.0 + weight if self.unit_offset else weight)).to(x.dtype)
