"""The attention layers of a model: who serves each, in which cache dtype and by which scales, how large its cache is.

Knows specifications and backends, no tensors; `groups.py` decides who shares what, `kv_memory.py` holds the memory.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from modulm.interfaces.attention import AttentionBackend, AttentionSpec
from modulm.interfaces.kv_cache import KV_CACHE_DTYPES, KVScales
from modulm.interfaces.support import Rejected
from modulm.log import logger
from modulm.worker.groups import Grouping, LayerPage

_log = logger("worker.attention_layers")


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
        kv_cache_dtype: Of the cache; "auto" is `declared` where a layer's backend serves it, else what that prefers.
        declared: What the checkpoint wants; None leaves it open.
        scales: Of the cache, by name, where the checkpoint has some and `kv_cache_dtype` or `declared` needs them.
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
        declared: str | None = None,
        scales: Mapping[str, KVScales] | None = None,
        device_type: str,
        exact: bool = False,
        attention: Callable[[AttentionSpec], AttentionBackend],
    ) -> None:
        self._scales = scales or {}
        self._declared = ""
        self.specs: dict[str, AttentionSpec] = {}
        self.backends: dict[str, AttentionBackend] = {}
        for name, asked in specs.items():
            cache_dtype = asked.dtype if kv_cache_dtype == "auto" else kv_cache_dtype
            spec = replace(asked, kv_cache_dtype=cache_dtype, device_type=device_type, exact=exact)
            backend = attention(spec)
            if kv_cache_dtype == "auto":
                spec = replace(spec, kv_cache_dtype=self._automatic(spec, backend, declared))
            if KV_CACHE_DTYPES[spec.kv_cache_dtype].has_scales:
                spec = replace(spec, kv_scales=self._scales.get(name))
            self.specs[name], self.backends[name] = spec, backend
        self._warn_of_missing_scales()

    def _automatic(self, spec: AttentionSpec, backend: AttentionBackend, declared: str | None) -> str:
        if declared is None:
            return backend.preferred_kv_cache_dtype(spec)
        answer = backend.supports(replace(spec, kv_cache_dtype=declared))
        if declared in KV_CACHE_DTYPES and not isinstance(answer, Rejected):
            self._declared = f"{declared}: done"
            return declared
        why = f"{backend.name}: {answer.reason}" if isinstance(answer, Rejected) else "there is no such cache"
        self._declared = f"{declared}: not done, {why}"
        return backend.preferred_kv_cache_dtype(spec)

    def _warn_of_missing_scales(self) -> None:
        bare = {
            spec.kv_cache_dtype: name
            for name, spec in self.specs.items()
            if KV_CACHE_DTYPES[spec.kv_cache_dtype].has_scales and spec.kv_scales is None
        }
        for dtype, name in bare.items():
            if dtype != "fp8_e5m2":  # which has the range of float16
                _log.warning(
                    "The checkpoint has no scales for the KV cache of %r, so they are 1 in a cache of %s: larger "
                    "numbers are cut off, small ones lost. If answers suffer, choose --kv-cache-dtype "
                    "int8_per_token_head, which needs no scales.",
                    name,
                    dtype,
                )

    def describe(self) -> dict[str, Any]:
        """Return what `modulm config --explain` shows of the cache: dtype, what was declared, where scales are from."""
        specs = self.specs.values()
        found: dict[str, Any] = {"kv_cache_dtype": ", ".join(sorted({spec.kv_cache_dtype for spec in specs}))}
        if self._declared:
            found["kv_cache_declared"] = self._declared
        scaled = [spec.kv_scales for spec in specs if KV_CACHE_DTYPES[spec.kv_cache_dtype].has_scales]
        if scaled:
            stored = sum(scales is not None for scales in scaled)
            found["kv_scales"] = f"of {stored} layers from the checkpoint, of {len(scaled) - stored} layers 1"
        return found

    def pages(self, block_size: int) -> dict[str, LayerPage]:
        """Return each layer's window and the bytes of one of its blocks."""
        return {
            name: LayerPage(
                sliding_window=self.specs[name].sliding_window,
                size_bytes=math.prod(shape) * np.dtype(KV_CACHE_DTYPES[self.specs[name].kv_cache_dtype].array).itemsize,
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
