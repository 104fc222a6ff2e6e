"""A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): a router picks `top_k` gated MLPs for every token.

Reads experts one by one, as checkpoints on disk have them, or stacked in one tensor, as transformers holds them.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from modulm.interfaces.kernels import PackedWeight
from modulm.interfaces.model import WeightSource
from modulm.interfaces.program import SparseMoE as SparseMoEOp
from modulm.nn.activation import SYNONYMS, GatedActivation
from modulm.nn.linear import merged_bias, sibling
from modulm.nn.traced import Traced


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Shape of a mixture.

    Attributes:
        count: Experts in all.
        top_k: Experts that each token goes through.
        hidden_size, intermediate_size: Of every expert's MLP.
        activation: As config.json calls it.
        normalised: Whether the chosen experts' probabilities are scaled to sum to one.
        names: What the checkpoint calls gate, up and down projection of an expert.
        aliases: Other names of the layer beside its own.
        router: What the checkpoint calls the router.
        bias: Whether router and experts have biases.
        in_turn: Where experts are stacked, rows of gate and up take turns, and matrices that are not quantized are
            stored [in, out] (gpt-oss).
    """

    count: int
    top_k: int
    hidden_size: int
    intermediate_size: int
    activation: str = "silu"
    normalised: bool = True
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    aliases: tuple[str, ...] = ()
    router: str = "gate"
    bias: bool = False
    in_turn: bool = False


class SparseMoE(nn.Module):
    """Router and experts as one layer.

    The router's softmax is over all experts, in float32; the `top_k` likeliest add up, weighted by probability.
    """

    router: PackedWeight
    gate_up: list[PackedWeight]
    down: list[PackedWeight]
    router_bias: torch.Tensor | None
    gate_up_bias: list[torch.Tensor | None]
    down_bias: list[torch.Tensor | None]

    def __init__(self, experts: Experts) -> None:
        super().__init__()
        self.experts = experts
        self._activation = GatedActivation(experts.activation)

    def load(self, name: str, source: WeightSource) -> None:
        """Read router and `<name>.experts`, or the same under an alias. Raises `CheckpointError`."""
        shape = self.experts
        base = next((n for n in self._bases(name) if source.has(f"{n}.{shape.router}.weight")), name)
        self.router = source.packed([f"{base}.{shape.router}"], [shape.count], shape.hidden_size)
        self.router_bias = merged_bias([f"{base}.{shape.router}"], [shape.count], shape.bias, source)
        if source.has(f"{base}.experts.gate_up_proj"):
            self._load_stacked(f"{base}.experts", source)
            return
        gate, up, down = shape.names
        self.gate_up, self.down, self.gate_up_bias, self.down_bias = [], [], [], []
        for index in range(shape.count):
            expert = f"{base}.experts.{index}"
            modules, sizes = [f"{expert}.{gate}", f"{expert}.{up}"], [shape.intermediate_size] * 2
            self.gate_up.append(source.packed(modules, sizes, shape.hidden_size))
            self.gate_up_bias.append(merged_bias(modules, sizes, shape.bias, source))
            self.down.append(source.packed([f"{expert}.{down}"], [shape.hidden_size], shape.intermediate_size))
            self.down_bias.append(merged_bias([f"{expert}.{down}"], [shape.hidden_size], shape.bias, source))

    def _bases(self, name: str) -> list[str]:
        return [name, *(sibling(name, alias) for alias in self.experts.aliases)]

    def _load_stacked(self, name: str, source: WeightSource) -> None:
        shape = self.experts
        gate_up_shape = (shape.count, 2 * shape.intermediate_size, shape.hidden_size)
        down_shape = (shape.count, shape.hidden_size, shape.intermediate_size)
        turned, every = shape.in_turn, range(shape.count)
        both = partial(source.packed_slice, f"{name}.gate_up_proj", gate_up_shape, transposed=turned, in_turn=turned)
        self.gate_up = [both(index) for index in every]
        self.down = [source.packed_slice(f"{name}.down_proj", down_shape, i, transposed=turned) for i in every]
        self.gate_up_bias = self.down_bias = [None for _ in every]
        if shape.bias:
            gate_up_bias = source.tensor(f"{name}.gate_up_proj_bias", gate_up_shape[:2])
            if turned:
                gate_up_bias = gate_up_bias.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
            self.gate_up_bias = list(gate_up_bias)
            self.down_bias = list(source.tensor(f"{name}.down_proj_bias", down_shape[:2]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [num_tokens, hidden_size] for x of that shape."""
        if isinstance(x, Traced):
            return self._record(x)
        probabilities = F.softmax(_plus(self.router.linear(x), self.router_bias), dim=-1, dtype=torch.float32)
        weights, chosen = probabilities.topk(self.experts.top_k, dim=-1)
        if self.experts.normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        for index in chosen.unique().tolist():
            token, rank = torch.where(chosen == index)
            hidden = self._activation(_plus(self.gate_up[index].linear(x[token]), self.gate_up_bias[index]))
            hidden = _plus(self.down[index].linear(hidden), self.down_bias[index])
            out.index_add_(0, token, hidden * weights[token, rank, None].to(x.dtype))
        return out

    def _record(self, x: Traced) -> Any:
        shape, weight, tensor = self.experts, x.recorder.weight, x.recorder.tensor
        wide, narrow = (2 * shape.intermediate_size, shape.hidden_size), (shape.hidden_size, shape.intermediate_size)
        return x.apply(
            SparseMoEOp,
            router=weight(self, self.router, (shape.count, shape.hidden_size), "router"),
            gate_up=tuple(weight(self, one, wide, f"gate_up.{i}") for i, one in enumerate(self.gate_up)),
            down=tuple(weight(self, one, narrow, f"down.{i}") for i, one in enumerate(self.down)),
            top_k=shape.top_k,
            function=SYNONYMS.get(shape.activation, shape.activation),
            normalised=shape.normalised,
            router_bias=None if self.router_bias is None else tensor(self, self.router_bias, "router_bias"),
            gate_up_bias=self._biases(x, "gate_up_bias"),
            down_bias=self._biases(x, "down_bias"),
        )

    def _biases(self, x: Traced, attribute: str) -> tuple[str, ...]:
        """Return the names of one bias for each expert; none where no expert has one."""
        biases = getattr(self, attribute)
        sample = next((bias for bias in biases if bias is not None), None)
        if sample is None:
            return ()
        filled = [torch.zeros_like(sample) if bias is None else bias for bias in biases]
        return tuple(x.recorder.tensor(self, bias, f"{attribute}.{index}") for index, bias in enumerate(filled))


def _plus(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x + bias
