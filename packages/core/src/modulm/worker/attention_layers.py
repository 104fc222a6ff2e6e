"""The attention layers of a model: who serves each, in which cache dtype, how large its part of the KV cache is.

Knows specifications and backends, no tensors; `groups.py` decides who shares what, `kv_memory.py` holds the memory.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from modulm.interfaces.attention import AttentionBackend, AttentionSpec
from modulm.worker.groups import Grouping, LayerPage

ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8_per_token_head": 1}
"""Bytes of a number of the cache, as backends count them in its shape."""


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Layers of one KV group that have one attention backend: `plan` is called once per step for all of them."""

    group: int
    backend: AttentionBackend
    layer_names: tuple[str, ...]


class AttentionLayers:
    """All attention layers, in the model's order.

    Args:
        specs: What each layer asks for, by name.
        kv_cache_dtype: Of the cache; "auto" is what each layer's backend prefers.
        device_type: Where the model is.
        exact: Whether the user asked for exact kernels.
        attention: Returns the backend for a specification.

    Attributes:
        specs: By name, with the cache's dtype and the device filled in.
        backends: By name.
    """

    def __init__(
        self,
        specs: Mapping[str, AttentionSpec],
        *,
        kv_cache_dtype: str,
        device_type: str,
        exact: bool = False,
        attention: Callable[[AttentionSpec], AttentionBackend],
    ) -> None:
        self.specs: dict[str, AttentionSpec] = {}
        self.backends: dict[str, AttentionBackend] = {}
        for name, asked in specs.items():
            cache_dtype = asked.dtype if kv_cache_dtype == "auto" else kv_cache_dtype
            spec = replace(asked, kv_cache_dtype=cache_dtype, device_type=device_type, exact=exact)
            backend = attention(spec)
            if kv_cache_dtype == "auto":
                spec = replace(spec, kv_cache_dtype=backend.preferred_kv_cache_dtype(spec))
            self.specs[name], self.backends[name] = spec, backend

    def pages(self, block_size: int) -> dict[str, LayerPage]:
        """Return each layer's window and the bytes of one of its blocks."""
        return {
            name: LayerPage(
                sliding_window=self.specs[name].sliding_window,
                size_bytes=math.prod(shape) * ITEM_SIZES[self.specs[name].kv_cache_dtype],
                pieces=None if (held := self.backends[name]).blocks_are_contiguous else (type(held), shape),
            )
            for name, shape in self.shapes(1, block_size).items()
        }

    def shapes(self, num_blocks: int, block_size: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each layer's cache."""
        return {
            name: self.backends[name].kv_cache_shape(
                num_blocks, block_size, spec.num_kv_heads, spec.head_size, kv_cache_dtype=spec.kv_cache_dtype
            )
            for name, spec in self.specs.items()
        }

    def planners(self, grouping: Grouping) -> list[Planner]:
        """Return who plans a step for which layers: one for each KV group and backend."""
        names: dict[tuple[int, int], list[str]] = {}
        for index, group in enumerate(grouping.groups):
            for name in group.layer_names:
                names.setdefault((index, id(self.backends[name])), []).append(name)
        return [
            Planner(group=index, backend=self.backends[layer_names[0]], layer_names=tuple(layer_names))
            for (index, _), layer_names in names.items()
        ]
