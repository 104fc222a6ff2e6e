"""What stands in modulm for an attention backend written for vLLM: it asks it, builds its parts and calls them.

The class is vLLM's; cache, layout of a step and choice are modulm's. In one process each layer has an implementation of
its own, as in vLLM, and each step's metadata come from the backend's own builder. Knows no plugin.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheLayout, SlidingWindowSpec

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import Incompatible, Unsupported
from modulm.interfaces.attention import AttentionBackend, AttentionSpec, BatchLayout
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_compat_vllm import model as models
from modulm_compat_vllm.config import view
from modulm_compat_vllm.selector import selector_config

_DTYPES = ("float32", "bfloat16", "float16")
_LAYOUTS = (KVCacheLayout.LBNHC, KVCacheLayout.LBHNC)
"""Those in which each layer has memory of its own, in vLLM's order of preference."""
_MANY = 7919
"""A number of blocks that no other dimension of a cache has."""


@functools.cache
def adapted(theirs: type) -> type[AttentionBackend]:
    """Return the class that stands for a backend. Raises `Incompatible` for a cache that modulm cannot offer."""
    attributes = {"theirs": theirs, "name": theirs.get_name(), "cache": _cache_form(theirs)}  # type: ignore[attr-defined]
    attributes["blocks_are_contiguous"] = attributes["cache"].is_by_block
    return type(f"Adapted{theirs.__name__}", (VllmAttention,), attributes)


@dataclass(frozen=True, kw_only=True)
class CacheForm:
    """How a backend's cache lies in memory.

    Attributes:
        shape: Arguments of `kv_cache_shape` -> shape in the order of memory, and in which the backend sees it.
        order: The axes of what the backend sees, outermost in memory first.
        is_by_block: Whether a block is one piece of memory.
    """

    shape: Callable[[int, int, int, int, str], tuple[int, ...]]
    order: tuple[int, ...]
    is_by_block: bool = True

    def in_memory(self, *sizes: Any) -> tuple[int, ...]:
        """Return the shape in the order of memory, blocks first: of a cache that is not by block, in name only."""
        seen = self.shape(*sizes)
        shape = [seen[axis] for axis in self.order]
        if not self.is_by_block:
            shape.insert(0, shape.pop(shape.index(sizes[0])))
        return tuple(shape)

    def seen(self, kv_cache: torch.Tensor, *sizes: Any) -> torch.Tensor:
        """Return the cache as the backend sees it, in the same memory."""
        shape = self.shape(*sizes)
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return kv_cache.view([shape[axis] for axis in self.order]).permute(inverse)


def _cache_form(theirs: Any) -> CacheForm:
    """From `get_kv_cache_shape`, which backends had in older versions, else from the layouts that it supports."""
    old = getattr(theirs, "get_kv_cache_shape", None)
    if old is None:
        layouts = theirs.supported_kv_cache_layouts()
        layout = next((layout for layout in _LAYOUTS if layouts is None or layout in layouts), None)
        if layout is None:
            raise Incompatible(
                f"Attention backend {theirs.__qualname__} supports the KV cache layouts {layouts}, of which none can "
                f"be had: each layer has memory of its own, so only {', '.join(one.name for one in _LAYOUTS)} can. Let "
                "it support one of these."
            )
        return CacheForm(
            shape=lambda blocks, size, heads, width, dtype: (blocks, heads, size, 2 * width),
            order=layout.layer_view_order,
        )
    takes_dtype = len(inspect.signature(old).parameters) > 4

    def shape(*sizes: Any) -> tuple[int, ...]:
        return tuple(old(*sizes) if takes_dtype else old(*sizes[:4]))

    axes = shape(_MANY, 16, 2, 64, "auto")
    try:
        order = tuple(theirs.get_kv_cache_stride_order())
    except (AttributeError, NotImplementedError):
        order = tuple(range(len(axes)))
    if axes.count(_MANY) != 1:
        raise Incompatible(
            f"Attention backend {theirs.__qualname__} wants a cache of shape {axes} for {_MANY} blocks, and modulm "
            "deals in blocks: exactly one dimension must be their number. Correct its get_kv_cache_shape."
        )
    return CacheForm(shape=shape, order=order, is_by_block=axes[order[0]] == _MANY)


@dataclass(kw_only=True)
class Layer:
    """What an implementation is called for. Nothing is stored quantized, so all scales are 1."""

    impl: Any
    kv_cache: torch.Tensor
    seen: torch.Tensor
    _q_scale: torch.Tensor = field(default_factory=lambda: torch.ones(()))
    _q_scale_float: float = 1.0
    _k_scale_float: float = 1.0
    _v_scale_float: float = 1.0

    def __post_init__(self) -> None:
        self._k_scale = self._v_scale = self._prob_scale = self._q_scale = self._q_scale.to(self.kv_cache.device)
        self._q_scale_cpu = self._k_scale_cpu = self._v_scale_cpu = torch.ones(())


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step: what the backend's builder made of it, and where this step's keys and values go."""

    metadata: Any
    slot_mapping: torch.Tensor


class VllmAttention(AttentionBackend):
    """Stands for the backend `theirs`; `adapted` makes a subclass for each."""

    theirs: ClassVar[Any]
    cache: ClassVar[CacheForm]

    def __init__(self, spec: AttentionSpec, vllm_config: VllmConfig) -> None:
        self._spec = spec
        self._vllm_config = vllm_config
        self._layers: dict[int, Layer] = {}
        device = torch.device(spec.device_type)
        with set_current_vllm_config(vllm_config):
            self._builder = self.theirs.get_builder_cls()(self._cache_spec(), [], vllm_config, device)
        if getattr(self._builder, "reorder_batch_threshold", None) is not None:
            raise Unsupported(
                f"Attention backend {self.name!r} wants sequences that decode in front of the others "
                f"(reorder_batch_threshold={self._builder.reorder_batch_threshold}), and modulm does not order them. "
                "Choose another, or let its builder do without."
            )
        impl = self.theirs.get_impl_cls()
        self._takes_output = "output" in inspect.signature(impl.forward).parameters

    @classmethod
    def create(cls, spec: AttentionSpec, config: EngineConfig, model: ModelConfig) -> AttentionBackend:
        """See base class. Raises `Unsupported` for a block size that the backend refuses."""
        if not cls.theirs.supports_block_size(config.block_size):
            sizes = cls.theirs.get_supported_kernel_block_sizes()
            raise Unsupported(
                f"block_size={config.block_size!r} does not work with attention backend {cls.name!r}, which supports "
                f"{sizes}. Set block_size to one of these."
            )
        vllm_config = view(config, device_type=spec.device_type)
        vllm_config.model_config = models.model_view(model)
        return cls(spec, vllm_config)

    @classmethod
    def supports(cls, spec: AttentionSpec) -> Support:
        """See base class: the backend's own answer, except for what cannot be handed to it."""
        if spec.has_sinks or spec.has_alibi:
            return Rejected("sinks and ALiBi slopes are not handed to backends written for vLLM")
        if spec.dtype not in _DTYPES:
            return Rejected(f"dtype {spec.dtype!r} is none of {', '.join(_DTYPES)}")
        if spec.kv_cache_dtype not in _DTYPES:
            return Rejected(f"a KV cache of {spec.kv_cache_dtype!r} is not laid out as vLLM's")
        reasons = cls.theirs.validate_configuration(device_capability=None, **selector_config(spec)._asdict())
        return (
            Rejected("; ".join(map(str, reasons)))
            if reasons
            else Accepted(f"written for vLLM, in {cls.theirs.__module__}")
        )

    @classmethod
    def kv_cache_shape(
        cls, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, kv_cache_dtype: str = "float32"
    ) -> tuple[int, ...]:
        """See base class."""
        return cls.cache.in_memory(num_blocks, block_size, num_kv_heads, head_size, "auto")

    def plan(self, layout: BatchLayout, device: torch.device) -> Step:
        """See base class: calls the builder."""
        common = common_metadata(layout, device)
        return Step(metadata=self._builder.build(0, common), slot_mapping=common.slot_mapping)

    def forward(
        self,
        spec: AttentionSpec,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        *,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See base class: calls the implementation."""
        layer = self._layers.get(id(kv_cache)) or self._new_layer(kv_cache)
        step: Step = metadata
        if not self.theirs.forward_includes_kv_cache_update:
            layer.impl.do_kv_cache_update(layer, key, value, layer.seen, step.slot_mapping)
        if not self._takes_output:
            found = layer.impl.forward(layer, query, key, value, layer.seen, step.metadata)
            return cast(torch.Tensor, found.reshape(query.shape))
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        layer.impl.forward(layer, query, key, value, layer.seen, step.metadata, output=output)
        return output

    def _new_layer(self, kv_cache: torch.Tensor) -> Layer:
        """Build the implementation of the layer whose cache this is; kept with it, so that its id stays its own."""
        spec = self._spec
        dtype = "auto" if spec.kv_cache_dtype == spec.dtype else spec.kv_cache_dtype
        known = (spec.num_heads, spec.head_size, spec.scale, spec.num_kv_heads, None, spec.sliding_window, dtype)
        with set_current_vllm_config(self._vllm_config):
            impl = self.theirs.get_impl_cls()(*known, spec.soft_cap, "decoder", None)
        if hasattr(impl, "process_weights_after_loading"):
            impl.process_weights_after_loading(getattr(torch, spec.dtype))
        block_size = self._vllm_config.cache_config.block_size
        seen = self.cache.seen(kv_cache, kv_cache.shape[0], block_size, spec.num_kv_heads, spec.head_size, "auto")
        layer = self._layers[id(kv_cache)] = Layer(impl=impl, kv_cache=kv_cache, seen=seen)
        return layer

    def _cache_spec(self) -> FullAttentionSpec | SlidingWindowSpec:
        kind = FullAttentionSpec if self._spec.sliding_window is None else SlidingWindowSpec
        return kind(
            block_size=self._vllm_config.cache_config.block_size,
            num_kv_heads=self._spec.num_kv_heads,
            head_size=self._spec.head_size,
            dtype=getattr(torch, self._spec.kv_cache_dtype),
            sliding_window=self._spec.sliding_window,
        )


def common_metadata(layout: BatchLayout, device: torch.device) -> CommonAttentionMetadata:
    """Return a step's layout as vLLM's builders are told it."""
    starts, lengths = torch.from_numpy(layout.query_start).int(), torch.from_numpy(layout.seq_lens).int()
    counts = layout.query_start[1:] - layout.query_start[:-1]
    return CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=lengths.to(device),
        num_reqs=len(lengths),
        num_actual_tokens=int(layout.query_start[-1]),
        max_query_len=int(counts.max(initial=0)),
        max_seq_len=int(layout.seq_lens.max(initial=0)),
        block_table_tensor=torch.from_numpy(layout.block_table).to(device, torch.int32),
        slot_mapping=torch.from_numpy(layout.slot_mapping).to(device, torch.int64),
        seq_lens_cpu_upper_bound=lengths,
    )
