"""Granite 3: Llama with multipliers on embedding, attention, residual stream and logits."""

from dataclasses import replace

from modulm.config import ModelConfig
from modulm.models.llama import LlamaForCausalLM
from modulm.models.settings import Settings


class GraniteForCausalLM(LlamaForCausalLM):
    """Granite 3.x, the dense ones."""

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """See `LlamaForCausalLM.settings`."""
        return replace(
            super().settings(config),
            attention_scale=float(config.get("attention_multiplier", 1.0)),
            embedding_multiplier=float(config.get("embedding_multiplier", 1.0)),
            residual_multiplier=float(config.get("residual_multiplier", 1.0)),
            logits_divisor=float(config.get("logits_scaling", 1.0)),
        )
