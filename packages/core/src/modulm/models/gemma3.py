"""Gemma 3, the text model: Gemma 2 without soft caps, norms on every head, two rotary bases (arXiv:2503.19786)."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from modulm.config import ModelConfig
from modulm.interfaces.model import ForwardBatch
from modulm.models.gemma2 import GemmaLayer, gemma_settings
from modulm.models.llama import Layer, LlamaForCausalLM
from modulm.models.settings import Settings, layer_types, refuse, windows_by_type
from modulm.nn.rope import Rope


class Gemma3ForCausalLM(LlamaForCausalLM):
    """Gemma 3 checkpoints that hold only the text model."""

    layer_class: ClassVar[type[Layer]] = GemmaLayer
    config_defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    }

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """See `LlamaForCausalLM.settings`."""
        refuse(config, "attn_logit_softcapping", why="Gemma 3 has no soft cap on attention scores")
        types = _layer_types(config)
        ropes = _ropes(config)
        flat = {key: value for key, value in config.hf.items() if key not in ("rope_parameters", "rope_scaling")}
        settings = replace(gemma_settings(replace(config, hf=flat)), qk_norm="head")
        layers = [replace(layer, rope=ropes[kind]) for layer, kind in zip(settings.layers, types, strict=True)]
        return replace(settings, layers=tuple(layers)).with_windows(windows_by_type(config, types))


class Gemma3ForConditionalGeneration(nn.Module):
    """The language model of a Gemma 3 checkpoint with a vision tower, which is not read: text in, text out."""

    supported_tasks: ClassVar[tuple[str, ...]] = ("generate",)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.language_model = Gemma3ForCausalLM(config)

    def forward(self, token_ids: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """See `CausalLM`."""
        return self.language_model(token_ids, batch)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM`."""
        return self.language_model.compute_logits(hidden)


def _layer_types(config: ModelConfig) -> list[str]:
    if config.get("layer_types") is not None:
        return layer_types(config)
    every = int(config.get("sliding_window_pattern", config.get("_sliding_window_pattern", 6)))
    count = int(config.need("num_hidden_layers"))
    return ["sliding_attention" if (index + 1) % every else "full_attention" for index in range(count)]


def _ropes(config: ModelConfig) -> dict[str, Rope]:
    """Layers with a window have a base of their own and are never scaled; before transformers 5, under other keys."""
    head_dim = int(config.get("head_dim", 256))
    nested = config.get("rope_parameters")
    if nested is None:
        local = {"rope_type": "default", "rope_theta": config.get("rope_local_base_freq", 10_000.0)}
        whole = {"rope_theta": config.get("rope_theta", 1_000_000.0), **config.get("rope_scaling", {})}
        nested = {"sliding_attention": local, "full_attention": whole}
    hf = {**config.hf, "rope_parameters": nested}
    return {
        kind: Rope.from_config(hf, head_dim, layer_type=kind, default_theta=theta)
        for kind, theta in (("sliding_attention", 10_000.0), ("full_attention", 1_000_000.0))
    }
