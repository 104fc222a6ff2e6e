"""Qwen2 and Qwen2.5: Llama with biases on query, key and value, and windows in the upper layers if asked for."""

from dataclasses import replace

from modulm.config import ModelConfig
from modulm.models.llama import LlamaForCausalLM
from modulm.models.settings import Settings, layer_types, read_settings, windows_by_type


def qwen_windows(config: ModelConfig) -> list[int | None]:
    """Return a window per layer, by `use_sliding_window` and then `layer_types` or `max_window_layers`."""
    num_layers = int(config.need("num_hidden_layers"))
    if not config.get("use_sliding_window", False) or config.get("sliding_window") is None:
        return [None] * num_layers
    if config.get("layer_types") is not None:
        return windows_by_type(config, layer_types(config))
    first = int(config.get("max_window_layers", 28))
    return [int(config.need("sliding_window")) if index >= first else None for index in range(num_layers)]


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Qwen2 and Qwen2.5, the dense ones."""

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """See `LlamaForCausalLM.settings`."""
        return replace(read_settings(config), qkv_bias=True).with_windows(qwen_windows(config))
