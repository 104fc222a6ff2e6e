"""Attention backend `cpu_attn`: paged attention in native code, one call per layer.

Knows tensors and how a step's layout reaches the native plan. Does not know how attention is cut into pieces and
computed (native/attention_plan.hpp, native/kernels/attention.cpp), nor what the cache's layout is good for
(native/attention.hpp).
"""

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from modulm.interfaces.attention import AttentionBackend, AttentionSpec, BatchLayout
from modulm.interfaces.support import Accepted, Rejected, Support

if TYPE_CHECKING:
    import torch

    from modulm_kernels_cpu._native import AttentionPlan

_DTYPES = ("float32", "bfloat16", "float16")
_FLOAT8 = ("fp8_e4m3", "fp8_e5m2")
_INT8 = "int8_per_token_head"
_SCALE_SIZE = 4
"""Bytes beside each token's key and value of a head: one float32."""
_LARGEST_HEAD = 512


class CPUAttention(AttentionBackend):
    """Serves head sizes that are multiples of 8, caches of floats of 32, 16 and 8 bits and of bytes, every block size.

    The cache is [num_blocks, 2, num_kv_heads, block_size, head_size]; what is under index 0, the keys, is in truth
    [head_size, block_size] for each block and head. For bytes the last dimension is head_size + 4, and scales lie
    behind the bytes of a block and head.
    """

    name: ClassVar[str] = "cpu_attn"

    @classmethod
    def supports(cls, spec: AttentionSpec) -> Support:
        """See base class."""
        if spec.device_type != "cpu":
            return Rejected(f"it runs on the CPU, not on {spec.device_type!r}")
        if spec.head_size % 8 or not 8 <= spec.head_size <= _LARGEST_HEAD:
            return Rejected(f"head size {spec.head_size} is not a multiple of 8 from 8 to {_LARGEST_HEAD}")
        for what, dtype, known in (
            ("dtype", spec.dtype, _DTYPES),
            ("KV cache dtype", spec.kv_cache_dtype, (*_DTYPES, *_FLOAT8, _INT8)),
        ):
            if dtype not in known:
                return Rejected(f"{what} {dtype!r} is none of {', '.join(known)}")
        try:
            from modulm_kernels_cpu import _native

            return Accepted(f"native kernels for {_native.isa()}")
        except (ImportError, RuntimeError) as error:  # no library for this platform, or MODULM_CPU_ISA cannot run
            return Rejected(f"its native library cannot be used: {error}")

    @classmethod
    def kv_cache_shape(
        cls, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, kv_cache_dtype: str = "float32"
    ) -> tuple[int, ...]:
        """See base class."""
        return (num_blocks, 2, num_kv_heads, block_size, head_size + (_SCALE_SIZE if kv_cache_dtype == _INT8 else 0))

    @classmethod
    def preferred_kv_cache_dtype(cls, spec: AttentionSpec) -> str:
        """16 bits: decoding reads the whole cache, and weights are rounded more coarsely than to 11 bits.

        Not 8: bytes raise the perplexity of SmolLM2-135M by 0.15 %, which is left to the user.
        """
        return "float16" if spec.dtype == "float32" else spec.dtype

    def plan(self, layout: BatchLayout, device: "torch.device") -> "AttentionPlan":
        """See base class. Raises `ValueError` for a layout that contradicts itself."""
        from modulm_kernels_cpu._native import AttentionPlan

        return AttentionPlan(
            np.ascontiguousarray(layout.query_start, np.int32),
            np.ascontiguousarray(layout.seq_lens, np.int32),
            np.ascontiguousarray(layout.block_table, np.int32),
            np.ascontiguousarray(layout.slot_mapping, np.int64),
            layout.block_size,
        )

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
        """See base class. Raises `ValueError` for tensors that do not fit, and for blocks the cache does not have."""
        import torch

        plan: AttentionPlan = metadata
        # DLPack capsules made this way cost a fifth of what the protocol's method costs.
        capsule = torch._C._to_dlpack
        out = torch.empty(query.shape, dtype=torch.float32)
        scales = () if spec.kv_scales is None else (spec.kv_scales.key, spec.kv_scales.value)
        key_scales, value_scales = (np.array(one, np.float32) for one in scales) if scales else (None, None)
        plan.forward(
            capsule(_wide(query)),
            capsule(_wide(key)),
            capsule(_wide(value)),
            capsule(kv_cache),
            capsule(out),
            spec.scale,
            spec.sliding_window or 0,
            spec.soft_cap or 0.0,
            None if sinks is None else capsule(sinks.float().contiguous()),
            None if alibi_slopes is None else capsule(alibi_slopes.float().contiguous()),
            exact=spec.exact,
            cache_type=spec.kv_cache_dtype,
            key_scales=key_scales,
            value_scales=value_scales,
        )
        return out if query.dtype == torch.float32 else out.to(query.dtype)


def _wide(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return float32 whose last dimension is contiguous; the tensor itself if it is so."""
    tensor = tensor.float()
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
