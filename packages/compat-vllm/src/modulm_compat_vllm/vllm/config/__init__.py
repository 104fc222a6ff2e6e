"""The configuration as vLLM's plugins read it: what this engine was asked for, under vLLM's sections and names.

Only what means something here is there; another name is an `AttributeError`. Made from modulm's `EngineConfig`, and
changes by a platform taken back to it, in `modulm_compat_vllm/config.py`, which also says which changes have an effect.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

_current: "ContextVar[VllmConfig | None]" = ContextVar("vllm_config", default=None)


class HFConfig:
    """The checkpoint's config.json with its keys as attributes (of the text part, where a model has several)."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(copy.deepcopy(values))

    def to_dict(self) -> dict[str, Any]:
        """Return the contents."""
        return dict(self.__dict__)


class ModelConfig:
    """The model. `hf_config` and what is read from it come from the checkpoint when somebody asks.

    Attributes:
        dtype: torch's type, or "auto" while it is not chosen.
    """

    def __init__(
        self,
        model: str = "",
        *,
        tokenizer: str | None = None,
        revision: str | None = None,
        served_model_name: str | None = None,
        dtype: Any = "auto",
        max_model_len: int | None = None,
        seed: int = 0,
        quantization: str | None = None,
        enforce_eager: bool = False,
        max_logprobs: int = 20,
        logits_processors: list[Any] | None = None,
        read_config: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer or model
        self.revision = revision
        self.served_model_name = served_model_name or model
        self.dtype = dtype
        self.seed = seed
        self.quantization = quantization
        self.enforce_eager = enforce_eager
        self.max_logprobs = max_logprobs
        self.logits_processors = list(logits_processors or ())
        self.runner_type = "generate"
        self._max_model_len = max_model_len
        self._read_config = read_config

    @cached_property
    def hf_config(self) -> HFConfig:
        """The checkpoint's config.json."""
        return HFConfig(self._read_config())

    def is_changed(self) -> bool:
        """Whether somebody wrote into `hf_config`."""
        return "hf_config" in self.__dict__ and self.hf_config.to_dict() != self._read_config()

    @property
    def hf_text_config(self) -> HFConfig:
        """The same: modulm runs text models."""
        return self.hf_config

    @property
    def architectures(self) -> list[str]:
        """Those that the checkpoint names."""
        return list(getattr(self.hf_config, "architectures", None) or ())

    @property
    def max_model_len(self) -> Any:
        """What was asked for, or else what the checkpoint says."""
        if self._max_model_len is None:
            return getattr(self.hf_config, "max_position_embeddings", None)
        return self._max_model_len

    @max_model_len.setter
    def max_model_len(self, value: int | None) -> None:
        self._max_model_len = value

    def get_vocab_size(self) -> int:
        """Return the columns of the logits."""
        return int(self.hf_config.vocab_size)  # type: ignore[attr-defined]

    def get_hidden_size(self) -> int:
        """Return the width of hidden states."""
        return int(self.hf_config.hidden_size)  # type: ignore[attr-defined]

    def get_head_size(self) -> int:
        """Return the width of one attention head."""
        values = self.hf_config.to_dict()
        return int(values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"])

    def get_num_attention_heads(self, parallel_config: Any = None) -> int:
        """Return the query heads; there is one device, so none are elsewhere."""
        return int(self.hf_config.num_attention_heads)  # type: ignore[attr-defined]

    def get_num_kv_heads(self, parallel_config: Any = None) -> int:
        """Return the key/value heads."""
        values = self.hf_config.to_dict()
        return int(values.get("num_key_value_heads") or values["num_attention_heads"])

    def get_num_layers(self, parallel_config: Any = None) -> int:
        """Return the layers."""
        return int(self.hf_config.num_hidden_layers)  # type: ignore[attr-defined]


@dataclass
class CacheConfig:
    """The KV cache. `num_gpu_blocks` are those of any device; None: not known yet."""

    block_size: int = 16
    gpu_memory_utilization: float = 0.5
    cache_dtype: str = "auto"
    enable_prefix_caching: bool = True
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks: int | None = None


@dataclass
class SchedulerConfig:
    """How requests are batched. `max_num_batched_tokens` may be None: then the platform says."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool = True
    policy: str = "fcfs"


@dataclass
class ParallelConfig:
    """One process, one device. A platform may name a worker class: see `vllm/v1/worker/cpu_worker.py`."""

    worker_cls: str = "auto"
    worker_extension_cls: str = ""
    distributed_executor_backend: str | None = "uni"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    world_size: int = 1
    rank: int = 0
    enable_expert_parallel: bool = False


@dataclass
class CompilationConfig:
    """Nothing is compiled here, so nothing of this makes a difference; it may be set."""

    mode: Any = 0
    backend: str = ""
    custom_ops: list[str] = field(default_factory=list)
    cudagraph_mode: Any = 0
    cudagraph_capture_sizes: list[int] = field(default_factory=list)
    splitting_ops: list[str] = field(default_factory=list)
    static_forward_context: dict[str, Any] = field(default_factory=dict)


@dataclass
class DeviceConfig:
    """The device, as the platform names it; "auto" while none is chosen."""

    device_type: str = "auto"


@dataclass
class LoadConfig:
    """Where weights come from."""

    load_format: str = "auto"
    download_dir: str | None = None


@dataclass
class AttentionConfig:
    """The attention backend that was asked for; None leaves it open."""

    backend: Any = None


@dataclass
class VllmConfig:
    """All sections; those that are None stand for what modulm does not do."""

    model_config: ModelConfig = field(default_factory=ModelConfig)
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    compilation_config: CompilationConfig = field(default_factory=CompilationConfig)
    device_config: DeviceConfig = field(default_factory=DeviceConfig)
    load_config: LoadConfig = field(default_factory=LoadConfig)
    attention_config: AttentionConfig = field(default_factory=AttentionConfig)
    lora_config: None = None
    speculative_config: None = None
    kv_transfer_config: None = None
    quant_config: Any = None
    additional_config: dict[str, Any] = field(default_factory=dict)


@contextmanager
def set_current_vllm_config(vllm_config: VllmConfig) -> Iterator[None]:
    """Make `get_current_vllm_config` return this one inside."""
    token = _current.set(vllm_config)
    try:
        yield
    finally:
        _current.reset(token)


def get_current_vllm_config_or_none() -> VllmConfig | None:
    """Return the configuration that a plugin's object is being made for, or None elsewhere."""
    return _current.get()


def get_current_vllm_config() -> VllmConfig:
    """Return the configuration that a plugin's object is being made for; raises `RuntimeError` elsewhere."""
    found = _current.get()
    if found is None:
        raise RuntimeError(
            "get_current_vllm_config() was called where no configuration is current. It is while modulm makes a "
            "plugin's object: call it in the constructor and keep the result, or use set_current_vllm_config()."
        )
    return found
