"""What one attention layer keeps in the KV cache, as vLLM's metadata builders are told it, and the cache's layouts."""

from dataclasses import dataclass
from enum import Enum
from typing import Any


class KVCacheLayout(Enum):
    """The order in memory of the axes of [L, B, H, N, C]: layers, blocks, heads, tokens of a block, key and value.

    Here each layer has memory of its own, block after block, so that only `LBHNC` and `LBNHC` can be had.
    """

    LBHNC = (0, 1, 2, 3, 4)
    LBNHC = (0, 1, 3, 2, 4)
    LHBNC = (0, 2, 1, 3, 4)
    BLHNC = (1, 0, 2, 3, 4)
    BLNHC = (1, 0, 3, 2, 4)
    BHLNC = (1, 2, 0, 3, 4)

    @property
    def stride_order(self) -> tuple[int, ...]:
        """The axes, outermost first."""
        return self.value

    @property
    def layer_view_order(self) -> tuple[int, ...]:
        """The axes of one layer's [B, H, N, C], outermost first."""
        return tuple(axis - 1 for axis in self.value if axis)


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    """The cache of one layer. `block_size` is in tokens."""

    block_size: int


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    """Keys and values. `dtype` is torch's."""

    num_kv_heads: int
    head_size: int
    dtype: Any

    @property
    def num_heads(self) -> int:
        """H of [B, H, N, C]."""
        return self.num_kv_heads

    @property
    def num_states(self) -> int:
        """N of [B, H, N, C]."""
        return self.block_size

    @property
    def state_content_size_bytes(self) -> int:
        """C of [B, H, N, C]: key and value of one head and token."""
        return 2 * self.head_size * int(self.dtype.itemsize)

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block."""
        return self.num_heads * self.num_states * self.state_content_size_bytes


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """Every position is kept."""

    sliding_window: int | None = None


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """Positions that fell out of the window are not."""

    sliding_window: int
