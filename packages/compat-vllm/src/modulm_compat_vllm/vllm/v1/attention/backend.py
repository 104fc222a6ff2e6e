"""The contract of vLLM's attention backends: a backend names the classes of its metadata builder and implementation.

What stands for such a backend in modulm, and calls it, is `modulm_compat_vllm/attention.py`.
"""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import torch

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheLayout

M = TypeVar("M")


class AttentionType(StrEnum):
    """Kinds of attention; modulm runs decoders."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


class AttentionCGSupport(Enum):
    """What a builder allows of recorded graphs; modulm records none with such backends."""

    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


@dataclass(frozen=True)
class MultipleOf:
    """Any block size that is a multiple of `base`."""

    base: int


class AttentionMetadata:
    """What a builder makes for one step; whatever a plugin wants it to be."""


class AttentionLayer(Protocol):
    """The layer that an implementation is called for. Scales are 1: nothing is stored quantized."""

    _q_scale: torch.Tensor
    _k_scale: torch.Tensor
    _v_scale: torch.Tensor
    _prob_scale: torch.Tensor
    _q_scale_float: float
    _k_scale_float: float
    _v_scale_float: float


@dataclass
class CommonAttentionMetadata:
    """Which tokens of a step belong to which sequence. Sequence i owns query_start_loc[i] .. query_start_loc[i + 1].

    Attributes:
        query_start_loc: int32 [num_reqs + 1], on the device; `_cpu` on the host.
        seq_lens: int32 [num_reqs], with this step's tokens.
        block_table_tensor: int32 [num_reqs, blocks of the longest].
        slot_mapping: int64 [num_actual_tokens], block * block_size + offset.
    """

    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool = True
    seq_lens_cpu_upper_bound: torch.Tensor | None = None

    def batch_size(self) -> int:
        """Return the number of sequences."""
        return self.num_reqs

    def naive_query_lens(self) -> torch.Tensor:
        """Return this step's tokens of each sequence."""
        return self.query_start_loc[1:] - self.query_start_loc[:-1]

    def compute_num_computed_tokens(self) -> torch.Tensor:
        """Return how many tokens of each sequence were in the cache before."""
        return self.seq_lens - self.naive_query_lens()

    def replace(self, **changes: Any) -> "CommonAttentionMetadata":
        """Return a copy with changes."""
        return dataclasses.replace(self, **changes)


class AttentionMetadataBuilder(ABC, Generic[M]):
    """Makes, once per step, what all layers of a kind share."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER
    reorder_batch_threshold: int | None = None
    supports_update_block_table: ClassVar[bool] = False

    def __init__(
        self,
        kv_cache_spec: "AttentionSpec",
        layer_names: list[str],
        vllm_config: "VllmConfig",
        device: torch.device,
    ) -> None:
        self.kv_cache_spec = kv_cache_spec
        self.layer_names = layer_names
        self.vllm_config = vllm_config
        self.device = device

    def _init_reorder_batch_threshold(
        self,
        reorder_batch_threshold: int | None = 1,
        supports_spec_as_decode: bool = False,
        supports_dcp_with_varlen: bool = False,
    ) -> None:
        self.reorder_batch_threshold = reorder_batch_threshold

    @classmethod
    def get_cudagraph_support(cls, vllm_config: "VllmConfig", kv_cache_spec: "AttentionSpec") -> AttentionCGSupport:
        """Return what it allows of recorded graphs."""
        return cls._cudagraph_support

    @abstractmethod
    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> M:
        """Return the metadata of a step; `common_prefix_len` is 0."""


class AttentionImplBase(ABC):
    """What all implementations have."""

    num_heads: int
    head_size: int
    scale: float
    supports_quant_query_input: bool = False

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Called once, before the first step."""


class AttentionImpl(AttentionImplBase):
    """Computes attention of one layer."""

    @abstractmethod
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
        raise NotImplementedError

    @abstractmethod
    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Cache key and value, attend, write [num_tokens, num_heads, head_size] to `output` and return it.

        One without the argument `output` returns the result, of that shape or flat.
        """


class AttentionBackend(ABC):
    """One way to compute attention."""

    accept_output_buffer: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update: bool = True

    @classmethod
    def modulm_class(cls) -> type:
        """Return what stands for this class in modulm's registries."""
        from modulm_compat_vllm.attention import adapted

        return adapted(cls)

    @staticmethod
    @abstractmethod
    def get_name() -> str:
        """Return its name."""

    @staticmethod
    @abstractmethod
    def get_impl_cls() -> type[AttentionImplBase]:
        """Return the class of its implementation."""

    @staticmethod
    @abstractmethod
    def get_builder_cls() -> type[AttentionMetadataBuilder[Any]]:
        """Return the class of its metadata builder."""

    @classmethod
    def full_cls_name(cls) -> tuple[str, str]:
        """Return module and qualified name."""
        return cls.__module__, cls.__qualname__

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Return the block sizes that it can work with."""
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> "tuple[KVCacheLayout, ...] | None":
        """Return the layouts of the cache that it can work with; None is any."""
        return None

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """Return the head sizes that it can work with; none is any."""
        return []

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Whether it can work with this head size."""
        sizes = cls.get_supported_head_sizes()
        return not sizes or head_size in sizes

    @classmethod
    def supports_dtype(cls, dtype: torch.dtype) -> bool:
        """Whether it can work in this dtype."""
        return dtype in cls.supported_dtypes

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: str | None) -> bool:
        """Whether it can store keys and values so."""
        return (
            kv_cache_dtype is None
            or not cls.supported_kv_cache_dtypes
            or (kv_cache_dtype in cls.supported_kv_cache_dtypes)
        )

    @classmethod
    def supports_block_size(cls, block_size: int | None) -> bool:
        """Whether it can work with blocks of this size."""
        sizes = cls.get_supported_kernel_block_sizes()
        if block_size is None or not sizes:
            return True
        return any(block_size % (size.base if isinstance(size, MultipleOf) else size) == 0 for size in sizes)

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Whether it computes this kind of attention."""
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """Whether it runs on GPUs of this compute capability."""
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        """Whether it knows learned sinks."""
        return False

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Whether it knows windows."""
        return False

    @classmethod
    def is_mla(cls) -> bool:
        """Whether it computes latent attention."""
        return False

    @classmethod
    def is_sparse(cls) -> bool:
        """Whether it computes sparse attention."""
        return False

    @classmethod
    def supports_combination(cls, *args: Any, **kwargs: Any) -> str | None:
        """Return why it cannot serve such layers on such a device, or None."""
        return None

    @classmethod
    def validate_configuration(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        use_per_head_quant_scales: bool,
        device_capability: Any,
        attn_type: str,
        has_sliding_window: bool = False,
        **others: bool,
    ) -> list[str]:
        """Return the reasons why it cannot serve such layers; none means that it can.

        Of vLLM's further questions (MLA, sparse and so on) modulm asks none: it answers them with False.
        """
        answers = {
            f"head size {head_size}": cls.supports_head_size(head_size),
            f"dtype {dtype}": cls.supports_dtype(dtype),
            f"KV cache dtype {kv_cache_dtype}": cls.supports_kv_cache_dtype(kv_cache_dtype),
            f"block size {block_size}": cls.supports_block_size(block_size),
            f"attention type {attn_type}": cls.supports_attn_type(attn_type),
            "attention that is not latent": cls.is_mla() == use_mla,
            "attention that is not sparse": cls.is_sparse() == use_sparse,
            "sinks": not has_sink or cls.supports_sink(),
            "sliding windows": not has_sliding_window or cls.supports_sliding_window(),
        }
        if device_capability is not None:
            answers[f"compute capability {device_capability}"] = cls.supports_compute_capability(device_capability)
        return [f"it does not support {what}" for what, is_supported in answers.items() if not is_supported]


def is_quantized_kv_cache(kv_cache_dtype: str) -> bool:
    """Whether keys and values are stored in less than 16 bits."""
    return kv_cache_dtype.startswith(("fp8", "int8", "int4", "nvfp4", "turboquant", "ultraquant"))
