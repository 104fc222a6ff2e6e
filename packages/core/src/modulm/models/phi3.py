"""Phi-3 and Phi-4-mini: Llama with fused matrices, optional sliding window, partial rotation and LongRoPE."""

from dataclasses import replace
from typing import Any, ClassVar

from modulm.config import ModelConfig
from modulm.models.llama import LlamaForCausalLM
from modulm.models.settings import Settings, read_settings


class Phi3ForCausalLM(LlamaForCausalLM):
    """Phi-3, Phi-3.5 and Phi-4 of this architecture."""

    config_defaults: ClassVar[dict[str, Any]] = {
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """See `LlamaForCausalLM.settings`."""
        settings = replace(read_settings(config), fused=True)
        window = config.get("sliding_window")
        return settings.with_windows([None if window is None else int(window)] * len(settings.layers))
