"""SmolLM3: Llama in which every fourth layer has no position embedding (Yang et al. 2025, arXiv:2501.18795)."""

from dataclasses import replace
from typing import Any, ClassVar

from modulm.config import ModelConfig
from modulm.errors import CheckpointError
from modulm.models.llama import LlamaForCausalLM
from modulm.models.settings import LayerSettings, Settings, layer_types, read_settings, windows_by_type


class SmolLM3ForCausalLM(LlamaForCausalLM):
    """SmolLM3."""

    config_defaults: ClassVar[dict[str, Any]] = {"num_key_value_heads": 4, "tie_word_embeddings": True}

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """See `LlamaForCausalLM.settings`."""
        bias = bool(config.get("attention_bias", False))
        mlp_bias = bool(config.get("mlp_bias", False))
        settings = replace(
            read_settings(config, default_theta=2_000_000.0), qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias
        )
        rotated = _rotated(config, len(settings.layers))
        layers = tuple(
            LayerSettings(rope=layer.rope if is_rotated else None)
            for layer, is_rotated in zip(settings.layers, rotated, strict=True)
        )
        return replace(settings, layers=layers).with_windows(_windows(config, rotated))


def _rotated(config: ModelConfig, num_layers: int) -> list[bool]:
    interval = int(config.get("no_rope_layer_interval", 4))
    flags = config.get("no_rope_layers", [(index + 1) % interval != 0 for index in range(num_layers)])
    if len(flags) < num_layers:
        raise CheckpointError(
            f"Model {config.name!r} has {len(flags)} no_rope_layers and {num_layers} layers; each needs one."
        )
    return [bool(flag) for flag in flags[:num_layers]]


def _windows(config: ModelConfig, rotated: list[bool]) -> list[int | None]:
    if not config.get("use_sliding_window", False) or config.get("sliding_window") is None:
        return [None] * len(rotated)
    if config.get("layer_types") is not None:
        return windows_by_type(config, layer_types(config))
    return windows_by_type(config, ["full_attention" if is_rotated else "sliding_attention" for is_rotated in rotated])
