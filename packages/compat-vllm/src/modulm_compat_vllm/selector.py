"""modulm's description of an attention layer in the words in which vLLM asks platforms and backends about it."""

from typing import TYPE_CHECKING

from vllm.v1.attention.selector import AttentionSelectorConfig

if TYPE_CHECKING:
    from modulm.interfaces.attention import AttentionSpec


def selector_config(spec: "AttentionSpec") -> AttentionSelectorConfig:
    """Return what vLLM would ask about such layers: decoders, dense, causal, on one device."""
    import torch

    return AttentionSelectorConfig(
        head_size=spec.head_size,
        dtype=getattr(torch, spec.dtype),
        kv_cache_dtype="auto" if spec.kv_cache_dtype == spec.dtype else spec.kv_cache_dtype,
        block_size=None,
        has_sink=spec.has_sinks,
        has_sliding_window=spec.sliding_window is not None,
    )
