"""A recorded program in plain torch, operation by operation: what every native executor is compared with.

Written from `interfaces/program.py` alone: it imports no `nn` layer, so that agreement with the model proves the graph.
Slow and obvious; keeps every value until the section ends.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from modulm.interfaces import program as ops
from modulm.interfaces.attention import AttentionBackend
from modulm.interfaces.kernels import PackedWeight

_ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class GraphInterpreter:
    """Runs one graph with its weights and tensors by name, and a backend for each attention layer."""

    def __init__(
        self,
        graph: ops.Graph,
        weights: Mapping[str, PackedWeight],
        tensors: Mapping[str, torch.Tensor],
        backends: Mapping[str, AttentionBackend],
    ) -> None:
        self.graph = graph
        self._weights = weights
        self._tensors = tensors
        self._backends = backends

    def forward(
        self, inputs: Mapping[str, torch.Tensor], kv_caches: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]
    ) -> torch.Tensor:
        """Return hidden states for `Graph.forward`'s inputs; caches and metadata by layer, as in `ForwardBatch`."""
        self._kv_caches, self._metadata = kv_caches, metadata
        return self._run(self.graph.forward, inputs)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits of some rows of what `forward` returned."""
        return self._run(self.graph.logits, {"hidden": hidden})

    def _run(self, section: ops.Section, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        values = {index: inputs[name] for name, index in section.inputs.items()}
        for op in section.ops:
            method = getattr(self, f"_{op.__struct_config__.tag}")
            found = method(op, *(values[index] for index in op.inputs))
            found = found if isinstance(found, tuple) else (found,)
            for index, value in zip(op.outputs, found, strict=True):
                expected = self.graph.values[index]
                assert value.shape[1:] == expected.shape and value.dtype == getattr(torch, expected.dtype), op
                values[index] = value
        return values[section.output]

    def _shapes(self, op: ops.Operation) -> list[tuple[int, ...]]:
        return [self.graph.values[index].shape for index in op.outputs]

    def _embedding(self, op: ops.Embedding, ids: torch.Tensor) -> torch.Tensor:
        return self._weights[op.weight].rows(ids, getattr(torch, self.graph.values[op.outputs[0]].dtype))

    def _linear(self, op: ops.Linear, x: torch.Tensor) -> torch.Tensor:
        return self._plus(self._weights[op.weight].linear(x), op.bias)

    def _plus(self, x: torch.Tensor, bias: str | None) -> torch.Tensor:
        return x if bias is None else x + self._tensors[bias]

    def _rms_norm(self, op: ops.RMSNorm, x: torch.Tensor) -> torch.Tensor:
        wide, weight = x.float(), self._tensors[op.weight].float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + op.eps)
        return (normed * (1.0 + weight if op.unit_offset else weight)).to(x.dtype)

    def _rotary_tables(self, op: ops.RotaryTables, positions: torch.Tensor, *lengths: torch.Tensor) -> Any:
        inverse = torch.tensor(op.inverse, device=positions.device)
        if op.long_inverse:
            longer = torch.tensor(op.long_inverse, device=positions.device)
            inverse = torch.where((lengths[0] > op.long_from)[:, None], longer, inverse)
        if op.dynamic is not None:
            stated, dim = op.dynamic.stated, 2 * len(op.inverse)
            growth = op.dynamic.factor * lengths[0].clamp(min=stated).float() / stated - (op.dynamic.factor - 1)
            base = op.dynamic.theta * growth ** (dim / (dim - 2))
            inverse = 1.0 / base[:, None] ** (torch.arange(0, dim, 2, device=positions.device).float() / dim)
        angles = positions[:, None].float() * inverse
        return angles.cos() * op.scaling, angles.sin() * op.scaling

    def _rotary(self, op: ops.Rotary, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, cos, sin = args
        return _rotated(query, cos[:, None], sin[:, None]), _rotated(key, cos[:, None], sin[:, None])

    def _attention(
        self, op: ops.Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        spec, cache, metadata = self.graph.layers[op.layer], self._kv_caches[op.layer], self._metadata[op.layer]
        sinks = None if op.sinks is None else self._tensors[op.sinks]
        return self._backends[op.layer].forward(spec, query, key, value, cache, metadata, sinks=sinks).flatten(1)

    def _gated_activation(self, op: ops.GatedActivation, x: torch.Tensor) -> torch.Tensor:
        return _gated(op.function, x)

    def _add(self, op: ops.Add, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    def _scale(self, op: ops.Scale, x: torch.Tensor) -> torch.Tensor:
        return x * op.factor

    def _split(self, op: ops.Split, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.split([size for (size,) in self._shapes(op)], dim=-1)

    def _reshape(self, op: ops.Reshape, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(len(x), *self._shapes(op)[0])

    def _sparse_moe(self, op: ops.SparseMoE, x: torch.Tensor) -> torch.Tensor:
        scores = self._plus(self._weights[op.router].linear(x), op.router_bias)
        weights, chosen = F.softmax(scores, dim=-1, dtype=torch.float32).topk(op.top_k, dim=-1)
        if op.normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            token, rank = torch.where(chosen == expert)
            gate_up_bias, down_bias = (names[expert] if names else None for names in (op.gate_up_bias, op.down_bias))
            both = self._plus(self._weights[op.gate_up[expert]].linear(x[token]), gate_up_bias)
            term = self._plus(self._weights[op.down[expert]].linear(_gated(op.function, both)), down_bias)
            out.index_add_(0, token, term * weights[token, rank, None].to(x.dtype))
        return out

    def _lm_head(self, op: ops.LMHead, x: torch.Tensor) -> torch.Tensor:
        logits = self._weights[op.weight].linear(x).float() / op.divisor
        return logits if op.soft_cap is None else op.soft_cap * torch.tanh(logits / op.soft_cap)


def _gated(function: str, both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2, dim=-1)
    if function == "swigluoai":
        gate = gate.clamp(max=7.0)
        return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-7.0, 7.0) + 1.0)
    return _ACTIVATIONS[function](gate) * up


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    a, b = x[..., :half].float(), x[..., half : 2 * half].float()
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), x[..., 2 * half :]], dim=-1)
