"""Which attention layers share a block table, and which share memory: KV groups from windows and page sizes.

Full layers and each sliding window are a type of their own, because blocks outside a window can be freed. All groups
draw block ids from one pool, so each has the same number of layers: layer j of every group lives in buffer j, and a
block id belongs to one group at a time. Knows no tensors and no backend.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modulm.types import KVGroup


@dataclass(frozen=True, kw_only=True)
class LayerPage:
    """What one attention layer needs of the cache: its window, and the bytes of one of its blocks.

    Where those bytes are not one piece of memory, layers whose `pieces` are equal have them in the same places.
    """

    sliding_window: int | None
    size_bytes: int
    pieces: Any = None


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """The layers, divided.

    Attributes:
        groups: As the engine sees them.
        buffers: Names of the layers that live in one buffer, for each buffer.
        block_bytes: What one block id costs, over all buffers.
    """

    groups: tuple[KVGroup, ...]
    buffers: tuple[tuple[str, ...], ...]
    block_bytes: int


def grouped(layers: Mapping[str, LayerPage], max_model_len: int) -> Grouping:
    """Divide the layers, given by name in the model's order. Windows no sequence can outgrow count as none."""
    types: dict[int | None, list[str]] = {}
    for name, page in layers.items():
        window = page.sliding_window
        types.setdefault(None if window is None or window >= max_model_len else window, []).append(name)
    if len({(page.size_bytes, page.pieces) for page in layers.values()}) > 1:
        # Blocks that do not lie in the same places cannot change hands between groups; windows still mask, but free
        # nothing.
        types = {None: list(layers)}
    chunks = _chunks(types)
    groups = tuple(KVGroup(layer_names=tuple(names), sliding_window=window) for window, names in chunks)
    count = max((len(names) for _, names in chunks), default=0)
    buffers = tuple(tuple(names[j] for _, names in chunks if j < len(names)) for j in range(count))
    return Grouping(
        groups=groups,
        buffers=buffers,
        block_bytes=sum(layers[names[0]].size_bytes for names in buffers),
    )


def _chunks(types: Mapping[int | None, list[str]]) -> list[tuple[int | None, list[str]]]:
    """Cut each type into groups of one size; the last of a type may be smaller and leaves part of its blocks unused."""
    counts = [len(names) for names in types.values()]
    size = min(counts, default=1)
    if counts and max(counts) < 1.25 * size:
        # 13 layers of one type and 12 of another: padding 12 to 13 wastes less than a third group for one layer.
        size = max(counts)
    return [(window, names[at : at + size]) for window, names in types.items() for at in range(0, len(names), size)]
