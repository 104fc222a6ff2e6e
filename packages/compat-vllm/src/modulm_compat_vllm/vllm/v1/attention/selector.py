"""What platforms and attention backends are asked about a layer."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class AttentionSelectorConfig(NamedTuple):
    """One kind of attention layer; names as in vLLM. What modulm's layers never need is False."""

    head_size: int
    dtype: "torch.dtype"
    kv_cache_dtype: str | None
    block_size: int | None
    use_mla: bool = False
    has_sink: bool = False
    use_sparse: bool = False
    use_mm_prefix: bool = False
    use_per_head_quant_scales: bool = False
    attn_type: str = "decoder"
    has_sliding_window: bool = False
    use_non_causal: bool = False
    use_batch_invariant: bool = False
    use_kv_connector: bool = False
    use_pcp: bool = False
    use_adaptive_verification: bool = False
    use_dcp: bool = False
    use_rswa: bool = False
