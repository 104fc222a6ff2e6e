"""The same over a cache as older backends have it, [key or value, blocks, block_size, heads, size]; no `output`."""

import os

import torch
from vllm.logger import init_logger
from vllm.v1.attention.backend import AttentionLayer

from custom_attention.kernel import (
    MyFlashAttnBackend,
    MyFlashAttnImpl,
    MyMetadata,
)

logger = init_logger("vllm.custom_attention")


class MyOldAttnImpl(MyFlashAttnImpl):
    """One for each layer."""

    def forward(  # type: ignore[override]
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: MyMetadata,
    ) -> torch.Tensor:
        """Cache key and value, attend, return the result."""
        self.num_calls += 1
        logger.debug("MyOldAttnImpl.forward: call %d, %d tokens, process %d", self.num_calls, len(query), os.getpid())
        key_cache, value_cache = (cache.view(-1, self.num_kv_heads, self.head_size) for cache in kv_cache.unbind(0))
        key_cache[attn_metadata.slot_mapping] = key.to(kv_cache.dtype)
        value_cache[attn_metadata.slot_mapping] = value.to(kv_cache.dtype)
        block_size = kv_cache.shape[2]
        found, starts = [], attn_metadata.starts
        for index, (start, end, length) in enumerate(zip(starts, starts[1:], attn_metadata.seq_lens, strict=False)):
            positions = torch.arange(self.attention.first_key(length, end - start), length, device=query.device)
            blocks = attn_metadata.block_table[index, positions // block_size].long()
            slots = blocks * block_size + positions % block_size
            keys, values = key_cache[slots].transpose(0, 1), value_cache[slots].transpose(0, 1)
            found.append(self.attention(query[start:end], keys, values))
        return torch.cat(found).flatten(1)


class MyOldAttnBackend(MyFlashAttnBackend):
    """Says the shape of its cache itself."""

    @staticmethod
    def get_name() -> str:
        """Return its name."""
        return "MY_OLD_ATTN"

    @staticmethod
    def get_impl_cls() -> type[MyOldAttnImpl]:
        """Return the class of its implementation."""
        return MyOldAttnImpl

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """Return the shape of the cache."""
        return (2, num_blocks, block_size, num_kv_heads, head_size)
