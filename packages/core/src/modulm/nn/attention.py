"""The attention layer of models: a name, a specification, and the backend that the worker bound to it.

Knows nothing of blocks: cache and per-step metadata come with the `ForwardBatch`, under the layer's name.
"""

import torch
from torch import nn

from modulm.interfaces.attention import AttentionBackend, AttentionSpec
from modulm.interfaces.model import ForwardBatch
from modulm.interfaces.program import Attention as AttentionOp
from modulm.nn.traced import Traced, refuse


class Attention(nn.Module):
    """Causal attention over the paged cache.

    `name` is unique in the model. The worker may replace `spec` (cache dtype, device) until it calls `bind`.
    """

    backend: AttentionBackend

    def __init__(self, name: str, spec: AttentionSpec) -> None:
        super().__init__()
        self.name = name
        self.spec = spec

    def bind(self, backend: AttentionBackend) -> None:
        """Set the backend, once, after the model is built and before its first step."""
        self.backend = backend

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        batch: ForwardBatch,
        *,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Cache key and value, attend, and return [num_tokens, num_heads * head_size].

        Args:
            query: [num_tokens, num_heads, head_size], rotated already.
            key, value: [num_tokens, num_kv_heads, head_size], key rotated already.
            batch: Holds this layer's cache and metadata.
            sinks, alibi_slopes: [num_heads], where the spec says so.
        """
        if isinstance(query, Traced):
            if alibi_slopes is not None:
                refuse("attention with ALiBi")
            query.recorder.layers[self.name] = self
            named = None if sinks is None else query.recorder.tensor(self, sinks, "sinks")
            shape = (self.spec.num_heads * self.spec.head_size,)
            return query.apply(AttentionOp, key, value, shape=shape, layer=self.name, sinks=named)
        out = self.backend.forward(
            self.spec,
            query,
            key,
            value,
            batch.kv_caches[self.name],
            batch.metadata[self.name],
            sinks=sinks,
            alibi_slopes=alibi_slopes,
        )
        return out.flatten(1)
