"""Between modulm's `EngineConfig` and vLLM's configuration: a view of the one as the other, and changes taken back.

A change that a platform makes to the view is honoured, or is known to make no difference, or is refused by name: none
is dropped. Knows no platform; `platform.py` calls this.
"""

import copy
import dataclasses
import functools
from typing import Any

from vllm.config import (
    AttentionConfig,
    CacheConfig,
    DeviceConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)

from modulm.config import EngineConfig
from modulm.errors import ConfigError
from modulm.log import logger

_HONOURED = {
    "model_config": {
        "dtype": "dtype",
        "max_model_len": "max_model_len",
        "seed": "seed",
        "quantization": "quantization",
        "enforce_eager": "enforce_eager",
        "max_logprobs": "max_logprobs",
    },
    "cache_config": {
        "block_size": "block_size",
        "gpu_memory_utilization": "gpu_memory_utilization",
        "cache_dtype": "kv_cache_dtype",
        "enable_prefix_caching": "enable_prefix_caching",
        "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    },
    "scheduler_config": {
        "max_num_seqs": "max_num_seqs",
        "max_num_batched_tokens": "max_num_batched_tokens",
        "enable_chunked_prefill": "enable_chunked_prefill",
        "policy": "scheduling_policy",
    },
    "attention_config": {"backend": "attention_backend"},
    "load_config": {"load_format": "load_format", "download_dir": "download_dir"},
}
"""Section and name of vLLM -> option of modulm. Whoever takes changes back looks after `parallel_config.worker_cls`."""
_NO_DIFFERENCE = "compilation_config"
_OWN = "additional_config"
"""The platform's own: whatever it makes for this configuration reads it there."""
_SECTIONS = {
    "cache_config": CacheConfig,
    "scheduler_config": SchedulerConfig,
    "attention_config": AttentionConfig,
    "load_config": LoadConfig,
}
_log = logger("compat_vllm")


def view(config: EngineConfig, *, device_type: str = "auto") -> VllmConfig:
    """Return a configuration of vLLM's kind that says what `config` says. The checkpoint is opened if asked for."""
    options = {own: getattr(config, ours) for own, ours in _HONOURED["model_config"].items()}
    model = ModelConfig(
        config.model,
        tokenizer=config.tokenizer,
        revision=config.revision,
        served_model_name=config.served_model_name,
        logits_processors=config.logits_processors,
        read_config=functools.cache(lambda: _checkpoint_config(config)),
        **{**options, "dtype": _torch_dtype(config.dtype)},
    )
    sections: dict[str, Any] = {
        section: kind(**{own: getattr(config, ours) for own, ours in _HONOURED[section].items()})
        for section, kind in _SECTIONS.items()
    }
    if config.attention_backend == "auto":
        sections["attention_config"] = AttentionConfig()
    return VllmConfig(
        model_config=model, device_config=DeviceConfig(device_type), parallel_config=ParallelConfig(), **sections
    )


def _checkpoint_config(config: EngineConfig) -> dict[str, Any]:
    from modulm.resolve import open_checkpoint

    checkpoint, _ = open_checkpoint(config)
    found = checkpoint.config()
    checkpoint.close()
    text = found.get("text_config")
    return text if isinstance(text, dict) else found


def _torch_dtype(name: str) -> Any:
    if name == "auto":
        return name
    import torch

    return getattr(torch, name)


def state(vllm_config: VllmConfig) -> dict[str, dict[str, Any]]:
    """Return the values of every section, to compare with later."""
    found = {}
    for section, held in vars(vllm_config).items():
        values = vars(held) if hasattr(held, "__dict__") else {"": held}
        found[section] = {
            name.removeprefix("_"): copy.deepcopy(value)
            for name, value in values.items()
            if name not in ("hf_config", "_read_config")
        }
    return found


def take_back(
    before: dict[str, dict[str, Any]], vllm_config: VllmConfig, config: EngineConfig, *, who: str
) -> dict[str, Any]:
    """Put what changed since `before` into `config`, and return what is for the caller to honour.

    Raises `ConfigError` naming a change that nothing here would honour, or a value that the option refuses.
    """
    options: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for section, values in state(vllm_config).items():
        for name, value in values.items():
            old = before.get(section, {})
            if name in old and old[name] == value:
                continue
            where = f"{section}.{name}".rstrip(".")
            if name in _HONOURED.get(section, {}):
                options[_HONOURED[section][name]] = _as_option(name, value)
            elif section == _OWN:
                continue
            elif section == _NO_DIFFERENCE:
                _log.info("%s sets %s=%r, which makes no difference: modulm compiles nothing.", who, where, value)
            elif where == "parallel_config.worker_cls":
                rest[where] = value
            else:
                raise _refused(who, where, value)
    if vllm_config.model_config.is_changed():
        raise _refused(who, "model_config.hf_config", "something else")
    checked = dataclasses.replace(config, **options)
    for name in options:
        setattr(config, name, getattr(checked, name))
    if options:
        _log.info("%s sets %s.", who, ", ".join(f"{name}={getattr(config, name)!r}" for name in options))
    return rest


def _as_option(name: str, value: Any) -> Any:
    if name == "backend":  # a member of AttentionBackendEnum, its name, or None
        return "auto" if value is None else str(getattr(value, "name", value)).lower()
    return value


def _refused(who: str, where: str, value: Any) -> ConfigError:
    there = [f"{section}.{name}" for section, names in _HONOURED.items() for name in names]
    return ConfigError(
        f"{who} sets {where}={value!r} in check_and_update_config, which nothing in modulm would honour. It may set: "
        f"parallel_config.worker_cls, {', '.join(there)}. Take that line out of the platform, or choose another "
        "platform with --device."
    )
