"""The memory of the KV cache: one buffer for each set of layers that share it, seen by each layer in its own shape.

Knows sizes and shapes, no sequences; `groups.py` says who shares.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""


def allocate(
    buffers: Sequence[Sequence[str]],
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, torch.dtype],
    device: torch.device,
) -> dict[str, torch.Tensor]:
    """Return each layer's cache tensor, zeroed.

    Args:
        buffers: Names of the layers that live in one buffer.
        shapes: Of each layer's tensor; equal in bytes within a buffer.
        dtypes: Of each layer's tensor.
        device: Where they shall be.
    """
    tensors = {}
    for names in buffers:
        sizes = {math.prod(shapes[name]) * dtypes[name].itemsize for name in names}
        assert len(sizes) == 1, "layers that share a buffer have pages of one size"
        buffer = _zeros(sizes.pop(), device)
        for name in names:
            tensors[name] = buffer.view(dtypes[name]).view(shapes[name])
    return tensors


def _zeros(size_bytes: int, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    # numpy's zeros come from the operating system untouched, so that memory is taken only as the cache fills;
    # torch.zeros would write them all.
    memory = np.zeros(size_bytes + _ALIGNMENT, dtype=np.uint8)
    offset = -memory.ctypes.data % _ALIGNMENT
    return torch.from_numpy(memory[offset : offset + size_bytes])
