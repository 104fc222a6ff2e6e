"""The attention layers of a model: bound to their backends, measured for the KV cache, gathered for each step's plans.

Knows `nn.attention.Attention` and backends; `groups.py` decides who shares what.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from modulm.interfaces.attention import AttentionBackend, AttentionSpec
from modulm.nn.attention import Attention
from modulm.worker.groups import Grouping, LayerPage
from modulm.worker.kv_tensors import allocate
from modulm.worker.program import Planner


class AttentionLayers:
    """All attention layers, in the model's order.

    Args:
        model: Loaded.
        kv_cache_dtype: Of the cache; "auto" is that of each layer.
        device: Where the model is.
        attention: Returns the backend for a specification.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        kv_cache_dtype: str,
        device: torch.device,
        attention: Callable[[AttentionSpec], AttentionBackend],
    ) -> None:
        self._device = device
        self._layers = {layer.name: layer for layer in model.modules() if isinstance(layer, Attention)}
        for layer in self._layers.values():
            cache_dtype = layer.spec.dtype if kv_cache_dtype == "auto" else kv_cache_dtype
            layer.spec = replace(layer.spec, kv_cache_dtype=cache_dtype, device_type=device.type)
            layer.bind(attention(layer.spec))

    def pages(self, block_size: int) -> dict[str, LayerPage]:
        """Return each layer's window and the bytes of one of its blocks."""
        return {
            name: LayerPage(
                sliding_window=layer.spec.sliding_window,
                size_bytes=math.prod(_shape(layer, 1, block_size)) * _dtype(layer).itemsize,
            )
            for name, layer in self._layers.items()
        }

    def caches(self, grouping: Grouping, num_blocks: int, block_size: int) -> dict[str, torch.Tensor]:
        """Allocate the KV cache; each layer's tensor by name."""
        return allocate(
            grouping.buffers,
            {name: _shape(layer, num_blocks, block_size) for name, layer in self._layers.items()},
            {name: _dtype(layer) for name, layer in self._layers.items()},
            self._device,
        )

    @property
    def backends(self) -> dict[str, AttentionBackend]:
        """Each layer's backend."""
        return {name: layer.backend for name, layer in self._layers.items()}

    def planners(self, grouping: Grouping) -> list[Planner]:
        """Return who plans a step for which layers: one for each KV group and backend."""
        names: dict[tuple[int, int], list[str]] = {}
        for index, group in enumerate(grouping.groups):
            for name in group.layer_names:
                names.setdefault((index, id(self._layers[name].backend)), []).append(name)
        return [
            Planner(group=index, backend=self._layers[layer_names[0]].backend, layer_names=tuple(layer_names))
            for (index, _), layer_names in names.items()
        ]


def _shape(layer: Attention, num_blocks: int, block_size: int) -> tuple[int, ...]:
    return layer.backend.kv_cache_shape(num_blocks, block_size, layer.spec.num_kv_heads, layer.spec.head_size)


def _dtype(layer: Attention) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, layer.spec.kv_cache_dtype)
    return dtype
