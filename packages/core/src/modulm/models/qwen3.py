"""Qwen3: Qwen2's windows, no biases unless config.json has them, and an RMS norm on every head of query and key."""

from dataclasses import replace
from typing import Any, ClassVar

from modulm.config import ModelConfig
from modulm.models.llama import LlamaForCausalLM
from modulm.models.qwen2 import qwen_windows
from modulm.models.settings import Settings, read_settings


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Qwen3, the dense ones."""

    config_defaults: ClassVar[dict[str, Any]] = {"head_dim": 128}

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """See `LlamaForCausalLM.settings`."""
        bias = bool(config.get("attention_bias", False))
        settings = replace(read_settings(config), qk_norm="head", qkv_bias=bias, o_bias=bias)
        return settings.with_windows(qwen_windows(config))
