"""Attention backends (family `modulm.attention`): paged key/value cache in, attention output out.

Everything runs in the engine's process, from one thread. `supports` is asked while the model loads, once per kind of
layer and candidate; `create` then makes one object per kind of layer. The worker asks for the cache's shape once and
calls `plan` once per step and KV group; `nn/attention.py` calls `forward` once per layer and step. A backend keeps no
state between steps except what `plan` returns.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from modulm.interfaces.kv_cache import KVScales
from modulm.interfaces.support import Support

if TYPE_CHECKING:
    import numpy as np
    import torch

    from modulm.config import EngineConfig, ModelConfig


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """What one attention layer needs of a backend.

    Attributes:
        num_heads, num_kv_heads: Query and key/value heads; num_heads is a multiple of num_kv_heads.
        head_size: Width of one head.
        scale: Factor on the query-key products (usually head_size ** -0.5).
        sliding_window: Position p sees p - sliding_window + 1 .. p; None sees all before it.
        soft_cap: Scores become soft_cap * tanh(score / soft_cap) (Gemma 2); None is off.
        has_sinks: One learned logit per head joins the softmax's denominator (gpt-oss).
        has_alibi: A slope per head times the distance is added to the scores.
        dtype: Of queries and output: "float32", "bfloat16" or "float16".
        kv_cache_dtype: Of the cache: one of `interfaces/kv_cache.py`, as "fp8_e4m3", or "int8_per_token_head", signed
            bytes with a scale for each token's key and value of a head.
        kv_scales: Of this layer's cache, where its dtype has such; None is 1 for all. Unknown yet when `supports` and
            `create` are asked: who serves the dtype serves any, one for each head.
        device_type: "cpu", "cuda", ...
        exact: Queries and weights are to be multiplied as they are; else a backend may round them.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    sliding_window: int | None = None
    soft_cap: float | None = None
    has_sinks: bool = False
    has_alibi: bool = False
    dtype: str = "float32"
    kv_cache_dtype: str = "float32"
    kv_scales: KVScales | None = None
    device_type: str = "cpu"
    exact: bool = False


@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """Which tokens of a step belong to which sequence, for one KV group. Host arrays, read only.

    Sequence i owns the tokens query_start[i] .. query_start[i + 1]; they are its positions
    seq_lens[i] - query_length .. seq_lens[i] - 1. Everything before is in the cache already.

    Attributes:
        query_start: int32 [num_seqs + 1], ascending from 0.
        seq_lens: int32 [num_seqs], tokens in the cache after this step.
        block_table: int32 [num_seqs, max_blocks]; entry j holds positions j * block_size onwards. Rows are padded
            with 0, the null block; so are positions that fell out of a sliding window.
        slot_mapping: int64 [num_tokens], block * block_size + offset, where each token's key and value go.
        block_size: Tokens per block.
    """

    query_start: "np.ndarray"
    seq_lens: "np.ndarray"
    block_table: "np.ndarray"
    slot_mapping: "np.ndarray"
    block_size: int


class AttentionBackend(ABC):
    """One way to compute attention over a paged cache."""

    name: ClassVar[str]
    blocks_are_contiguous: ClassVar[bool] = True
    """Whether a block's keys and values lie together in the cache, as one piece of memory. Where they do not, a layer
    passes blocks on only to layers of the same backend and shape; beside others, sliding windows free none."""

    @classmethod
    def create(cls, spec: AttentionSpec, config: "EngineConfig", model: "ModelConfig") -> "AttentionBackend":
        """Make the backend for all layers of one spec; `config` is what the user asked for, `model` what will run."""
        return cls()

    @classmethod
    @abstractmethod
    def supports(cls, spec: AttentionSpec) -> Support:
        """Say whether this backend can serve such a layer. Must not raise, must not touch a device."""

    @classmethod
    @abstractmethod
    def kv_cache_shape(
        cls, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, kv_cache_dtype: str = "float32"
    ) -> tuple[int, ...]:
        """Return the shape of one layer's cache tensor; its first dimension must be `num_blocks`.

        Its numbers have the cache's type in memory (`KV_CACHE_DTYPES`). Scales of tokens and groups lie beside them:
        the shape has room for those.
        """

    @classmethod
    def preferred_kv_cache_dtype(cls, spec: AttentionSpec) -> str:
        """Return the cache's dtype where the user leaves it open, for a spec that `supports` accepts."""
        return spec.dtype

    @abstractmethod
    def plan(self, layout: BatchLayout, device: "torch.device") -> Any:
        """Prepare what all layers of a KV group share in this step (once per step and group)."""

    @abstractmethod
    def forward(
        self,
        spec: AttentionSpec,
        query: "torch.Tensor",
        key: "torch.Tensor",
        value: "torch.Tensor",
        kv_cache: "torch.Tensor",
        metadata: Any,
        *,
        sinks: "torch.Tensor | None" = None,
        alibi_slopes: "torch.Tensor | None" = None,
    ) -> "torch.Tensor":
        """Write key and value to the cache, then return causal attention for every query token.

        All keys and values of the step are written before any is read, so sequences of one step may share blocks.

        Args:
            query: [num_tokens, num_heads, head_size]
            key, value: [num_tokens, num_kv_heads, head_size]
            kv_cache: As `kv_cache_shape` says; changed in place, only at this step's slots.
            metadata: What `plan` returned for this step and KV group.
            sinks, alibi_slopes: [num_heads], where the spec says so.

        Returns:
            [num_tokens, num_heads, head_size] in the query's dtype.
        """
