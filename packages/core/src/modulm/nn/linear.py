"""Linear layers over packed weights: one matrix, or several of the checkpoint as one (QKV, gate and up).

Knows names and sizes; what a weight looks like is the kernel provider's business (`interfaces/kernels.py`).
"""

from collections.abc import Mapping

import torch
from torch import nn

from modulm.interfaces.kernels import PackedWeight
from modulm.interfaces.model import WeightSource
from modulm.interfaces.program import Linear as LinearOp
from modulm.nn.traced import Traced


class Linear(nn.Module):
    """`x @ W.T + b`.

    A bias that the checkpoint holds is always added, whatever `bias` says; one that `bias` asks for must be there.
    """

    weight: PackedWeight
    bias: torch.Tensor | None

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.expects_bias = bias
        self.bias = None

    def load(self, name: str, source: WeightSource) -> None:
        """Read `<name>.weight` through scheme and kernel, and `<name>.bias`. Raises `CheckpointError`."""
        self.weight = source.packed([name], [self.out_features], self.in_features)
        self.bias = _bias(name, self.out_features, self.expects_bias, source)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [num_tokens, out_features] for x [num_tokens, in_features]."""
        return _linear(self, x)


class MergedLinear(nn.Module):
    """Linear layers with one input, side by side in one matrix.

    `parts` maps checkpoint names, relative to the parent of this module, to output sizes: with
    `{"q_proj": 64, "k_proj": 16, "v_proj": 16}` a module "…self_attn.qkv_proj" reads "…self_attn.q_proj" and so on.
    """

    weight: PackedWeight
    bias: torch.Tensor | None

    def __init__(self, in_features: int, parts: Mapping[str, int], *, bias: bool = False) -> None:
        super().__init__()
        self.in_features = in_features
        self.parts = dict(parts)
        self.out_features = sum(self.parts.values())
        self.expects_bias = bias
        self.bias = None

    def load(self, name: str, source: WeightSource) -> None:
        """Read the parts' weights and biases. Raises `CheckpointError` naming the tensor that is missing."""
        modules = [sibling(name, part) for part in self.parts]
        sizes = list(self.parts.values())
        self.weight = source.packed(modules, sizes, self.in_features)
        self.bias = merged_bias(modules, sizes, self.expects_bias, source)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [num_tokens, sum of parts] for x [num_tokens, in_features]."""
        return _linear(self, x)


def _linear(layer: Linear | MergedLinear, x: torch.Tensor) -> torch.Tensor:
    if isinstance(x, Traced):
        recorder, size = x.recorder, layer.out_features
        weight = recorder.weight(layer, layer.weight, (size, layer.in_features))
        bias = None if layer.bias is None else recorder.tensor(layer, layer.bias, "bias")
        return x.apply(LinearOp, shape=(size,), weight=weight, bias=bias)
    out = layer.weight.linear(x)
    return out if layer.bias is None else out + layer.bias


def sibling(name: str, other: str) -> str:
    """Return the dotted name `other` under the parent of `name`."""
    parent = name.rpartition(".")[0]
    return f"{parent}.{other}" if parent else other


def merged_bias(modules: list[str], sizes: list[int], expected: bool, source: WeightSource) -> torch.Tensor | None:
    """Return the biases of layers in one piece, zeros for those without; None where no layer has one."""
    biases = [_bias(module, size, expected, source) for module, size in zip(modules, sizes, strict=True)]
    present = [bias for bias in biases if bias is not None]
    if not present:
        return None
    return torch.cat(
        [present[0].new_zeros(size) if bias is None else bias for bias, size in zip(biases, sizes, strict=True)]
    )


def _bias(module: str, size: int, expected: bool, source: WeightSource) -> torch.Tensor | None:
    name = f"{module}.bias"
    return source.tensor(name, (size,)) if expected or source.has(name) else None
