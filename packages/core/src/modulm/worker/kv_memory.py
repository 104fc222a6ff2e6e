"""The memory of the KV cache: one buffer for each set of layers that share it, seen by each layer in its own shape.

Knows sizes and shapes, no sequences; `groups.py` says who shares. torch is imported where tensors are asked for.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from modulm.interfaces.kv_cache import KV_CACHE_DTYPES

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""
_HUGE_PAGE = 1 << 21
"""Bytes. On Linux numpy asks for such pages from two of them on, and they lie where addresses are multiples of this: a
cache fills from its start, so that must be one. With small pages attention over long contexts takes a fifth longer."""


def host_caches(
    buffers: Sequence[Sequence[str]], shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Return each layer's cache on the host, zeroed.

    Args:
        buffers: Names of the layers that live in one buffer.
        shapes: Of each layer's cache; equal in bytes within a buffer.
        dtypes: Of each layer's cache; bfloat16 comes as uint16.
    """
    caches = {}
    types = {name: np.dtype(KV_CACHE_DTYPES[dtypes[name]].array) for names in buffers for name in names}
    sizes = [_size(names, shapes, types) for names in buffers]
    alignments = [_HUGE_PAGE if size >= 2 * _HUGE_PAGE else _ALIGNMENT for size in sizes]
    # numpy's zeros come from the operating system untouched, so that memory is taken only as the cache fills;
    # torch.zeros would write them all. Of many pieces glibc would still write 132 KiB each.
    memory = np.zeros(sum(sizes) + sum(alignments), dtype=np.uint8)
    start = memory.ctypes.data
    for names, size, alignment in zip(buffers, sizes, alignments, strict=True):
        start += -start % alignment
        offset = start - memory.ctypes.data
        for name in names:
            caches[name] = memory[offset : offset + size].view(types[name]).reshape(shapes[name])
        start += size
    return caches


def as_tensors(caches: Mapping[str, np.ndarray]) -> "dict[str, torch.Tensor]":
    """Return caches of the host as torch sees them, in the same memory."""
    import torch

    tensors = {name: torch.from_numpy(cache) for name, cache in caches.items()}
    return {name: one.view(torch.bfloat16) if one.dtype == torch.uint16 else one for name, one in tensors.items()}


def device_caches(
    buffers: Sequence[Sequence[str]],
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    device: "torch.device",
) -> "dict[str, torch.Tensor]":
    """Return each layer's cache on a device; see `host_caches`."""
    import torch

    caches = {}
    for names in buffers:
        types = {name: getattr(torch, KV_CACHE_DTYPES[dtypes[name]].tensor) for name in names}
        memory = torch.zeros(_size(names, shapes, types), dtype=torch.uint8, device=device)
        for name in names:
            caches[name] = memory.view(types[name]).view(shapes[name])
    return caches


def _size(names: Sequence[str], shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, Any]) -> int:
    sizes = {math.prod(shapes[name]) * types[name].itemsize for name in names}
    assert len(sizes) == 1, "layers that share a buffer have pages of one size"
    return int(sizes.pop())
