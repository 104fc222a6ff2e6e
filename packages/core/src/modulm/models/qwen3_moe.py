"""Qwen3-MoE: Qwen3's attention; most layers' MLPs are mixtures of experts."""

from dataclasses import replace
from typing import Any, ClassVar

from modulm.config import ModelConfig
from modulm.models.llama import LlamaForCausalLM
from modulm.models.settings import LayerSettings, Settings, read_settings
from modulm.nn.moe import Experts


class Qwen3MoeForCausalLM(LlamaForCausalLM):
    """Qwen3-30B-A3B and relatives."""

    config_defaults: ClassVar[dict[str, Any]] = {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
    }

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """See `LlamaForCausalLM.settings`."""
        bias = bool(config.get("attention_bias", False))
        settings = replace(read_settings(config), qk_norm="head", qkv_bias=bias, o_bias=bias)
        window = config.get("sliding_window") if config.get("use_sliding_window", False) else None
        layers = tuple(
            LayerSettings(rope=layer.rope, window=window, experts=_experts(config, index, settings))
            for index, layer in enumerate(settings.layers)
        )
        return replace(settings, layers=layers)


def _experts(config: ModelConfig, index: int, settings: Settings) -> Experts | None:
    """Layers are sparse every `decoder_sparse_step`, except those of `mlp_only_layers`."""
    count = int(config.get("num_experts", config.get("num_local_experts", 128)))
    step = int(config.get("decoder_sparse_step", 1))
    if index in config.get("mlp_only_layers", []) or count == 0 or (index + 1) % step != 0:
        return None
    return Experts(
        count=count,
        top_k=int(config.need("num_experts_per_tok")),
        hidden_size=settings.hidden_size,
        intermediate_size=int(config.need("moe_intermediate_size")),
        activation=settings.activation,
        normalised=bool(config.get("norm_topk_prob", False)),
    )
