"""Mixtral: Mistral whose MLPs are mixtures of experts (Jiang et al. 2024, arXiv:2401.04088)."""

from dataclasses import replace
from typing import Any, ClassVar

from modulm.config import ModelConfig
from modulm.models.llama import Layer, LlamaForCausalLM
from modulm.models.settings import LayerSettings, Settings, read_settings
from modulm.nn.moe import Experts


class MixtralLayer(Layer):
    """Llama's layer; checkpoints on disk call the experts otherwise."""

    mlp_name: ClassVar[str] = "block_sparse_moe"


class MixtralForCausalLM(LlamaForCausalLM):
    """Mixtral 8x7B and 8x22B."""

    layer_class: ClassVar[type[Layer]] = MixtralLayer
    config_defaults: ClassVar[dict[str, Any]] = {
        "num_key_value_heads": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
    }

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """See `LlamaForCausalLM.settings`."""
        settings = read_settings(config, default_theta=1_000_000.0)
        experts = Experts(
            count=int(config.get("num_local_experts", config.get("num_experts", 8))),
            top_k=int(config.need("num_experts_per_tok")),
            hidden_size=settings.hidden_size,
            intermediate_size=settings.intermediate_size,
            activation=settings.activation,
            names=("w1", "w3", "w2"),
            aliases=("mlp",),
        )
        window = config.get("sliding_window")
        layers = tuple(LayerSettings(rope=layer.rope, window=window, experts=experts) for layer in settings.layers)
        return replace(settings, layers=layers)
