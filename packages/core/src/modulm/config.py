"""What the user asked for (`EngineConfig`) and what the checkpoint turned out to be (`ModelConfig`). Data and checks.

Choices with several candidates are made in `resolve.py`; nothing here opens a file or looks at a device.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from modulm.errors import CheckpointError, ConfigError, did_you_mean

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = (*DTYPES, "int8_per_token_head", "fp8_e4m3", "fp8_e5m2", "nvfp4")
_ALIASES = {"float": "float32", "half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
_KV_ALIASES = {**_ALIASES, "fp8": "fp8_e4m3", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}
_MOST_THREADS = 1024


def cache_folder() -> Path:
    """Return where files are kept that can be made anew: MODULM_CACHE_DIR, else `modulm` in the user's cache folder."""
    named = os.environ.get("MODULM_CACHE_DIR")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "modulm"


@dataclass(kw_only=True)
class EngineConfig:
    """Every option of an engine, under vLLM's names. Built through `make`, which refuses unknown ones.

    Attributes:
        model: Folder, `.gguf` file, hub id, or `package://PACKAGE/FILE`.
        tokenizer: Where to take tokenizer and chat template from, named as a model is; None takes the model's.
        max_model_len: Longest sequence, prompt and output together; None takes the model's own.
        max_num_seqs: Sequences that may run at once.
        max_num_batched_tokens: Tokens computed in one step; longer prompts are split (chunked prefill). None leaves it
            to the platform.
        kv_cache_memory_bytes: Size of the KV cache; None derives it from `gpu_memory_utilization` of what is free.
        gpu_memory_utilization: Share of the device's memory the engine may take, on whatever device.
        kv_cache_dtype: What keys and values are stored as; "auto": as the checkpoint declares or else the attention
            backend prefers.
        block_size: Tokens per KV block.
        enforce_eager: Never run the model as a recorded program in native code.
        attention_backend, quantization, load_format: A name, or "auto"/None for automatic choice.
        kernel_precision: "exact": kernels round no activations; "fast": they may; "auto": as each thinks best.
        cpu_threads: Threads that compute on the CPU, in the whole process; None: as many as torch and kernels choose.
        logits_processors: Classes or "module:Class" strings, after those of plugins.
        tool_call_parser, reasoning_parser: Formats of the model's output, by name; "auto": told by its chat template.
        tool_parser_plugin, reasoning_parser_plugin: A module or .py file that registers parsers when it is imported.
        structured_output_backend: A name; "auto": for each request the first that enforces all it asks for.
        speculative_config: How drafts are made that the model only confirms: {"method": "ngram", ...}; vLLM's keys.
        spec_method, spec_model, spec_tokens: Its "method", "model" and "num_speculative_tokens", for short.
        enable_jump_forward: Whether tokens that a form forces are computed at once, where the backend can tell them.
        plugins_lock: File written by `modulm plugins lock`; plugins that it does not list are not imported.
        plugin_config: Settings that plugins have of their own: {plugin's name: {key: value}}.
        num_kv_blocks: Fixes the number of KV blocks (tests); overrides both memory options.
    """

    model: str
    tokenizer: str | None = None
    revision: str | None = None
    download_dir: str | None = None
    served_model_name: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = 0.5
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    num_kv_blocks: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    enforce_eager: bool = False
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    seed: int = 0
    quantization: str | None = None
    load_format: str = "auto"
    attention_backend: str = "auto"
    kernels: str = "auto"
    kernel_precision: str = "auto"
    device: str = "auto"
    cpu_threads: int | None = None
    executor: str = "inprocess"
    logits_processors: list[Any] = field(default_factory=list)
    chat_template: str | None = None
    generation_config: str = "auto"
    max_logprobs: int = 20
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    tool_parser_plugin: str | None = None
    reasoning_parser_plugin: str | None = None
    structured_output_backend: str = "auto"
    speculative_config: dict[str, Any] | None = None
    spec_method: str | None = None
    spec_model: str | None = None
    spec_tokens: int | None = None
    enable_jump_forward: bool = True
    plugins_lock: str | None = None
    plugin_config: dict[str, dict[str, Any]] = field(
        default_factory=dict,
        metadata={"help": "a setting of a plugin's own; may be repeated", "form": "NAME.key=value"},
    )

    @classmethod
    def make(cls, **options: Any) -> "EngineConfig":
        """Build from keyword options; an unknown one is a `ConfigError` with the nearest name."""
        known = cls.__dataclass_fields__
        for name in options:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ConfigError(f"Option {name!r} is unknown.{hint} Known: {', '.join(sorted(known))}.")
        return cls(**options)

    @property
    def tokens_per_step(self) -> int:
        """`max_num_batched_tokens`, or 2048 where neither user nor platform has said."""
        return self.max_num_batched_tokens or 2048

    def __post_init__(self) -> None:
        self._check_texts()
        self.dtype = _ALIASES.get(self.dtype, self.dtype)
        self.kv_cache_dtype = _KV_ALIASES.get(self.kv_cache_dtype, self.kv_cache_dtype)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        _one_of("kernel_precision", self.kernel_precision, ("auto", "fast", "exact"))
        _one_of("scheduling_policy", self.scheduling_policy, ("fcfs", "priority"))
        _one_of("generation_config", self.generation_config, ("auto", "modulm", "vllm"))
        switches = ("enable_prefix_caching", "enable_chunked_prefill", "enforce_eager", "enable_jump_forward")
        for name in switches:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} is refused: it must be True or False.")
        self._check_numbers()
        self._gather_speculation()
        check_plugin_config(self.plugin_config)
        if isinstance(self.logits_processors, str) or not isinstance(self.logits_processors, list | tuple):
            raise ConfigError(
                f"logits_processors={self.logits_processors!r} is refused: it must be a list of classes or "
                "'module:Class' strings."
            )

    def _check_texts(self) -> None:
        """Every option of type `str` holds one; paths and torch's types are turned into theirs."""
        for name, spec in self.__dataclass_fields__.items():
            value = getattr(self, name)
            if spec.type not in (str, str | None) or (value is None and spec.type is not str):
                continue
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            elif name in ("dtype", "kv_cache_dtype"):
                value = str(value).removeprefix("torch.")
            if not isinstance(value, str) or not value:
                kind = (
                    "a path or name" if name in ("model", "tokenizer", "download_dir", "plugins_lock") else "a string"
                )
                raise ConfigError(f"{name}={value!r} is refused: it must be {kind}.")
            setattr(self, name, value)

    def _gather_speculation(self) -> None:
        given = self.speculative_config
        if given is not None and not (isinstance(given, dict) and all(isinstance(key, str) for key in given)):
            raise ConfigError(f'speculative_config={given!r} is refused: it must be {{"method": NAME, ...}}.')
        gathered = dict(given or {})
        for name, key in _SPECULATION.items():
            value = getattr(self, name)
            if value is not None and gathered.setdefault(key, value) != value:
                raise ConfigError(
                    f"{name}={value!r} is refused: speculative_config says {key}={gathered[key]!r}. Give one of them."
                )
            setattr(self, name, None)  # said once from here on
        self.speculative_config = gathered or given

    def _check_numbers(self) -> None:
        for name in ("max_num_seqs", "block_size"):
            _whole(name, getattr(self, name), 1)
        for name in ("max_num_batched_tokens", "max_model_len", "kv_cache_memory_bytes", "num_kv_blocks"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        threads = self.cpu_threads
        if threads is not None and not (_is_whole(threads) and 1 <= threads <= _MOST_THREADS):
            raise ConfigError(
                f"cpu_threads={threads!r} is refused: it must be a whole number from 1 to {_MOST_THREADS}. Leave it "
                "out to run as many threads as torch and the kernels choose."
            )
        _whole("max_logprobs", self.max_logprobs, -1)
        _whole("seed", self.seed, -math.inf)
        share = self.gpu_memory_utilization
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ConfigError(f"gpu_memory_utilization={share!r} is refused: it must be over 0 and at most 1.")


_SPECULATION = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}


def check_plugin_config(given: Any) -> None:
    """Raise `ConfigError` unless it is {name: {key: value}}."""
    inner = list(given.values()) if isinstance(given, dict) else [None]
    keys = [key for each in (given, *inner) if isinstance(each, dict) for key in each]
    if not all(isinstance(each, dict) for each in inner) or not all(isinstance(key, str) for key in keys):
        raise ConfigError(f"plugin_config={given!r} is refused: it must be {{plugin's name: {{key: value}}}}.")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is unknown. There are: {', '.join(allowed)}.")


def _whole(name: str, value: object, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        bound = f" of at least {least}" if math.isfinite(least) else ""
        raise ConfigError(f"{name}={value!r} is refused: it must be a whole number{bound}.")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_COUNTS = (
    *("hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("num_hidden_layers", "num_experts_per_tok", "head_dim", "vocab_size", "max_position_embeddings"),
    *("sliding_window", "sliding_window_pattern", "decoder_sparse_step", "no_rope_layer_interval"),
)
_NUMBERS = (
    *("rms_norm_eps", "rope_theta", "rope_local_base_freq", "partial_rotary_factor", "query_pre_attn_scalar"),
    *("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
)
_SWITCHES = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window", "norm_topk_prob")
_KEYS: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (_COUNTS, lambda value: _is_whole(value) and value >= 1, "it must be a whole number of at least 1"),
    (
        ("num_experts", "num_local_experts", "max_window_layers"),
        lambda value: _is_whole(value) and value >= 0,
        "it must be a whole number of at least 0",
    ),
    (
        _NUMBERS,
        lambda value: (isinstance(value, float) or _is_whole(value)) and value >= 0,
        "it must be a number of at least 0",
    ),
    (_SWITCHES, lambda value: isinstance(value, bool), "it must be true or false"),
)
"""Keys of config.json that models read as they are, what they must be, and the words for it."""


@dataclass(kw_only=True)
class ModelConfig:
    """The model as its checkpoint declares it: config.json's contents with a few checked readings.

    Attributes:
        name: What the user called the model.
        hf: config.json's contents (of the text part, where a model has several), never changed after creation.
        architectures: Names to look up in the model registry, in order.
        dtype: What the engine computes in: "float32", "bfloat16" or "float16".
        max_model_len: Longest sequence the engine will run.

    Raises `CheckpointError` on a key whose value is of the wrong kind: read otherwise it would change the answers.
    """

    name: str
    hf: dict[str, Any]
    architectures: list[str]
    dtype: str = "float32"
    max_model_len: int = 0

    def __post_init__(self) -> None:
        for keys, is_right, why in _KEYS:
            for key in keys:
                value = self.hf.get(key)
                if value is not None and not is_right(value):
                    raise CheckpointError(f"{key}={value!r} in the config of model {self.name!r} is refused: {why}.")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a key of config.json; null counts as missing."""
        value = self.hf.get(key)
        return default if value is None else value

    def need(self, key: str) -> Any:
        """Return a key that must be there. Raises `CheckpointError` naming it."""
        value = self.hf.get(key)
        if value is None:
            raise CheckpointError(f"Model {self.name!r} has no {key!r} in its config; a {self.architectures} needs it.")
        return value

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding; logits have as many columns."""
        return int(self.need("vocab_size"))
