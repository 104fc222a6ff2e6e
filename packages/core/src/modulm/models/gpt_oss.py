"""gpt-oss: every other layer with a window, attention with sinks, experts with biases and a clamped gate.

Source: OpenAI, gpt-oss-120b & gpt-oss-20b Model Card, arXiv:2508.10925; sinks are those of arXiv:2309.17453.
"""

from dataclasses import replace
from typing import Any, ClassVar

from modulm.config import ModelConfig
from modulm.models.llama import LlamaForCausalLM
from modulm.models.settings import Settings, alternating_windows, read_settings, refuse
from modulm.nn.moe import Experts

_YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


class GptOssForCausalLM(LlamaForCausalLM):
    """gpt-oss-20b and gpt-oss-120b."""

    config_defaults: ClassVar[dict[str, Any]] = {
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
    }

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """See `LlamaForCausalLM.settings`."""
        refuse(config, "swiglu_limit", why="kernels clamp at 7", allowed=(None, 7))
        refuse(config, "swiglu_alpha", why="kernels have 1.702", allowed=(None, 1.702))
        if config.get("rope_parameters") is None and config.get("rope_scaling") is None:
            config = replace(config, hf={**config.hf, "rope_parameters": _YARN})
        settings = read_settings(config, default_theta=150_000.0)
        experts = Experts(
            count=int(config.need("num_local_experts")),
            top_k=int(config.need("num_experts_per_tok")),
            hidden_size=settings.hidden_size,
            intermediate_size=settings.intermediate_size,
            activation="swigluoai",
            router="router",
            bias=True,
            in_turn=True,
        )
        bias = bool(config.get("attention_bias"))
        layers = tuple(replace(layer, experts=experts) for layer in settings.layers)
        settings = replace(settings, layers=layers, qkv_bias=bias, o_bias=bias, sinks=True)
        return settings.with_windows(alternating_windows(config))
