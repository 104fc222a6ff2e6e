"""OLMo 2 (arXiv:2501.00656): norms after attention and MLP, and one over all heads of query and one of key."""

from dataclasses import replace
from typing import Any, ClassVar

import torch

from modulm.config import ModelConfig
from modulm.interfaces.model import ForwardBatch
from modulm.models.llama import Layer, LlamaForCausalLM
from modulm.models.settings import Settings
from modulm.nn.rotary import Tables


class Olmo2Layer(Layer):
    """Attention, norm, add; MLP, norm, add."""

    norm_names: ClassVar[tuple[str, ...]] = ("post_attention_layernorm", "post_feedforward_layernorm")

    def forward(self, x: torch.Tensor, tables: Tables | None, batch: ForwardBatch) -> torch.Tensor:
        """See `Layer.forward`."""
        x = x + self.post_attention_layernorm(self.self_attn(x, tables, batch))
        return x + self.post_feedforward_layernorm(self.feed_forward(x))


class Olmo2ForCausalLM(LlamaForCausalLM):
    """OLMo 2."""

    layer_class: ClassVar[type[Layer]] = Olmo2Layer
    config_defaults: ClassVar[dict[str, Any]] = {"rms_norm_eps": 1e-5, "mlp_bias": False}

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """See `LlamaForCausalLM.settings`."""
        return replace(super().settings(config), qk_norm="all", mlp_bias=False)
