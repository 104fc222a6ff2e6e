"""Gemma 2: norms before and after attention and MLP, soft caps, every other layer with a window (arXiv:2408.00118)."""

from dataclasses import replace
from typing import Any, ClassVar

import torch

from modulm.config import ModelConfig
from modulm.interfaces.model import ForwardBatch
from modulm.models.llama import Layer, LlamaForCausalLM
from modulm.models.settings import Settings, alternating_windows, read_settings, refuse
from modulm.nn.rotary import Tables


class GemmaLayer(Layer):
    """Norm, attention, norm, add; norm, MLP, norm, add."""

    norm_names: ClassVar[tuple[str, ...]] = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )

    def forward(self, x: torch.Tensor, tables: Tables | None, batch: ForwardBatch) -> torch.Tensor:
        """See `Layer.forward`."""
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), tables, batch))
        return x + self.post_feedforward_layernorm(self.feed_forward(self.pre_feedforward_layernorm(x)))


class Gemma2ForCausalLM(LlamaForCausalLM):
    """Gemma 2."""

    layer_class: ClassVar[type[Layer]] = GemmaLayer
    config_defaults: ClassVar[dict[str, Any]] = {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """See `LlamaForCausalLM.settings`."""
        settings = replace(gemma_settings(config), attention_soft_cap=config.get("attn_logit_softcapping"))
        return settings.with_windows(alternating_windows(config))


def gemma_settings(config: ModelConfig) -> Settings:
    """Read what Gemma 2 and 3 share."""
    refuse(config, "use_bidirectional_attention", why="a decoder looks back only")
    settings = read_settings(config)
    bias = bool(config.get("attention_bias", False))
    # transformers holds the multiplier in the compute dtype: in bfloat16 sqrt(3072) is 55.5
    multiplier = torch.tensor(settings.hidden_size**0.5, device="cpu").to(settings.dtype).item()
    return replace(
        settings,
        activation=str(config.need("hidden_activation")),
        attention_scale=float(config.need("query_pre_attn_scalar")) ** -0.5,
        logits_soft_cap=config.get("final_logit_softcapping"),
        qkv_bias=bias,
        o_bias=bias,
        unit_offset=True,
        embedding_multiplier=multiplier,
    )
