"""Mistral: Llama with a sliding window in every layer (Jiang et al. 2023, arXiv:2310.06825) and no biases."""

from typing import Any, ClassVar

from modulm.config import ModelConfig
from modulm.models.llama import LlamaForCausalLM
from modulm.models.settings import Settings, read_settings, refuse


class MistralForCausalLM(LlamaForCausalLM):
    """Mistral 7B and its successors of the same architecture."""

    config_defaults: ClassVar[dict[str, Any]] = {"num_key_value_heads": 8, "sliding_window": 4096}

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """See `LlamaForCausalLM.settings`."""
        refuse(config, "layer_types", why="all layers of a Mistral are alike; alternating ones are Ministral's")
        settings = read_settings(config)
        window = config.get("sliding_window")
        return settings.with_windows([None if window is None else int(window)] * len(settings.layers))
