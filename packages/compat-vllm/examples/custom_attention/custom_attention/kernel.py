"""Attention in plain torch, one sequence after the other, over a cache of [blocks, heads, block_size, key + value]."""

import os
from dataclasses import dataclass
from typing import ClassVar

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionLayer,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import AttentionSpec

logger = init_logger("vllm.custom_attention")


@dataclass
class MyMetadata:
    """What all layers share in a step: starts and lengths of sequences as numbers, and where their blocks are."""

    starts: list[int]
    seq_lens: list[int]
    block_table: torch.Tensor
    slot_mapping: torch.Tensor


class MyMetadataBuilder(AttentionMetadataBuilder[MyMetadata]):
    """Called once per step."""

    def __init__(
        self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.block_size = vllm_config.cache_config.block_size

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> MyMetadata:
        """Return the metadata of a step."""
        return MyMetadata(
            starts=common_attn_metadata.query_start_loc_cpu.tolist(),
            seq_lens=common_attn_metadata.seq_lens.tolist(),
            block_table=common_attn_metadata.block_table_tensor,
            slot_mapping=common_attn_metadata.slot_mapping,
        )


class MyAttention:
    """The arithmetic, whatever the cache looks like."""

    def __init__(self, scale: float, sliding_window: int | None, soft_cap: float | None) -> None:
        self.scale, self.window, self.soft_cap = scale, sliding_window, soft_cap

    def first_key(self, length: int, num_queries: int) -> int:
        """Return the first position that the last `num_queries` of a sequence see."""
        return 0 if self.window is None else max(0, length - num_queries - self.window + 1)

    def __call__(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Return [t, heads, size] for queries of that shape, the last positions of keys [kv_heads, m, size]."""
        count, length = query.shape[0], keys.shape[1]
        group = query.shape[1] // keys.shape[0]
        keys, values = (part.float().repeat_interleave(group, dim=0) for part in (keys, values))
        scores = query.transpose(0, 1).float() @ keys.transpose(1, 2) * self.scale
        if self.soft_cap is not None:
            scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        positions = torch.arange(length, device=query.device)
        distances = positions - positions[-count:, None]
        hidden = distances > 0
        if self.window is not None:
            hidden |= distances <= -self.window
        return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values).transpose(0, 1).to(query.dtype)


class MyFlashAttnImpl(AttentionImpl):
    """One for each layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        assert alibi_slopes is None
        self.num_kv_heads, self.head_size = num_kv_heads or num_heads, head_size
        self.attention = MyAttention(scale, sliding_window, logits_soft_cap)
        self.num_calls = 0

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: MyMetadata,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Cache key and value, attend, write the result to `output`."""
        self.num_calls += 1
        logger.debug("MyFlashAttnImpl.forward: call %d, %d tokens, process %d", self.num_calls, len(query), os.getpid())
        key_cache, value_cache = kv_cache[..., : self.head_size], kv_cache[..., self.head_size :]
        block_size = kv_cache.shape[2]
        blocks, offsets = attn_metadata.slot_mapping // block_size, attn_metadata.slot_mapping % block_size
        key_cache[blocks, :, offsets] = key.to(kv_cache.dtype)
        value_cache[blocks, :, offsets] = value.to(kv_cache.dtype)
        starts = attn_metadata.starts
        for index, (start, end, length) in enumerate(zip(starts, starts[1:], attn_metadata.seq_lens, strict=False)):
            positions = torch.arange(self.attention.first_key(length, end - start), length, device=query.device)
            blocks, offsets = attn_metadata.block_table[index, positions // block_size].long(), positions % block_size
            keys, values = (cache[blocks, :, offsets].transpose(0, 1) for cache in (key_cache, value_cache))
            output[start:end] = self.attention(query[start:end], keys, values)
        return output


class MyFlashAttnBackend(AttentionBackend):
    """Dense causal attention, on any device."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]

    @staticmethod
    def get_name() -> str:
        """Return its name."""
        return "MY_FLASH_ATTN"

    @staticmethod
    def get_impl_cls() -> type[MyFlashAttnImpl]:
        """Return the class of its implementation."""
        return MyFlashAttnImpl

    @staticmethod
    def get_builder_cls() -> type[MyMetadataBuilder]:
        """Return the class of its metadata builder."""
        return MyMetadataBuilder

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Whether it knows windows."""
        return True
