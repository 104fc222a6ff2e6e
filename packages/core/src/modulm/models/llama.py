"""Llama, and the pattern all decoders follow: modules named as in the checkpoint, a plain sequence of `nn` layers.

A variant is a subclass of `LlamaForCausalLM` that says in `settings` what differs, and where the order of
operations differs (Gemma, OLMo 2), a layer class of its own. Models know neither quantization nor block tables.
"""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from modulm.config import ModelConfig
from modulm.interfaces.attention import AttentionSpec
from modulm.interfaces.model import ForwardBatch, WeightSource
from modulm.models.settings import LayerSettings, Settings, read_settings
from modulm.nn.activation import GatedActivation
from modulm.nn.attention import Attention
from modulm.nn.embedding import Embedding, LMHead
from modulm.nn.linear import Linear, MergedLinear
from modulm.nn.moe import SparseMoE
from modulm.nn.norm import RMSNorm
from modulm.nn.rope import Rope
from modulm.nn.rotary import RotaryEmbedding, Tables, apply_rotary


class SelfAttention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) with optional query and key norms."""

    def __init__(self, name: str, settings: Settings, layer: LayerSettings) -> None:
        super().__init__()
        self.head_dim = settings.head_dim
        self.qk_norm = settings.qk_norm
        sizes = [heads * self.head_dim for heads in (settings.num_heads, settings.num_kv_heads, settings.num_kv_heads)]
        parts = dict(zip(("q_proj", "k_proj", "v_proj"), sizes, strict=True))
        self.sizes = sizes
        self.qkv_proj: nn.Module
        if settings.fused:
            self.qkv_proj = Linear(settings.hidden_size, sum(sizes), bias=settings.qkv_bias)
        else:
            self.qkv_proj = MergedLinear(settings.hidden_size, parts, bias=settings.qkv_bias)
        if self.qk_norm is not None:
            widths = [self.head_dim, self.head_dim] if self.qk_norm == "head" else sizes
            self.q_norm = RMSNorm(widths[0], settings.norm_eps, unit_offset=settings.unit_offset)
            self.k_norm = RMSNorm(widths[1], settings.norm_eps, unit_offset=settings.unit_offset)
        spec = AttentionSpec(
            num_heads=settings.num_heads,
            num_kv_heads=settings.num_kv_heads,
            head_size=settings.head_dim,
            scale=settings.attention_scale,
            sliding_window=layer.window,
            soft_cap=settings.attention_soft_cap,
            has_sinks=settings.sinks,
            dtype=str(settings.dtype).removeprefix("torch."),
        )
        self.attn = Attention(name, spec)
        self.sinks: torch.Tensor | None = None
        self.o_proj = Linear(sizes[0], settings.hidden_size, bias=settings.o_bias)

    def load(self, name: str, source: WeightSource) -> None:
        """Read `<name>.sinks` [num_heads], where there are to be any. Raises `CheckpointError`."""
        if self.attn.spec.has_sinks:
            self.sinks = source.tensor(f"{name}.sinks", (self.attn.spec.num_heads,))

    def forward(self, x: torch.Tensor, tables: Tables | None, batch: ForwardBatch) -> torch.Tensor:
        """Return [num_tokens, hidden_size] for x of that shape; without `tables` nothing is rotated."""
        query, key, value = self.qkv_proj(x).split(self.sizes, dim=-1)
        if self.qk_norm == "all":
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = (part.unflatten(-1, (-1, self.head_dim)) for part in (query, key, value))
        if self.qk_norm == "head":
            query, key = self.q_norm(query), self.k_norm(key)
        if tables is not None:
            query, key = apply_rotary(query, key, tables)
        return self.o_proj(self.attn(query, key, value, batch, sinks=self.sinks))


class MLP(nn.Module):
    """Gated MLP: down(act(gate(x)) * up(x))."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        hidden_size, size, bias = settings.hidden_size, settings.intermediate_size, settings.mlp_bias
        self.gate_up_proj: nn.Module
        if settings.fused:
            self.gate_up_proj = Linear(hidden_size, 2 * size, bias=bias)
        else:
            self.gate_up_proj = MergedLinear(hidden_size, {"gate_proj": size, "up_proj": size}, bias=bias)
        self.act = GatedActivation(settings.activation)
        self.down_proj = Linear(size, hidden_size, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [num_tokens, hidden_size] for x of that shape."""
        return self.down_proj(self.act(self.gate_up_proj(x)))


class Layer(nn.Module):
    """One decoder layer: norm, attention, add; norm, MLP or experts, add. Subclasses order them otherwise."""

    mlp_name: ClassVar[str] = "mlp"
    """What the checkpoint calls the MLP or the experts."""
    norm_names: ClassVar[tuple[str, ...]] = ("input_layernorm", "post_attention_layernorm")
    input_layernorm: nn.Module
    post_attention_layernorm: nn.Module
    pre_feedforward_layernorm: nn.Module
    post_feedforward_layernorm: nn.Module

    def __init__(self, name: str, settings: Settings, layer: LayerSettings) -> None:
        super().__init__()
        self.multiplier = settings.residual_multiplier
        self.self_attn = SelfAttention(f"{name}.self_attn", settings, layer)
        self.add_module(self.mlp_name, MLP(settings) if layer.experts is None else SparseMoE(layer.experts))
        for norm in self.norm_names:
            self.add_module(norm, RMSNorm(settings.hidden_size, settings.norm_eps, unit_offset=settings.unit_offset))

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the MLP or the experts, whatever their name."""
        return getattr(self, self.mlp_name)(x)

    def forward(self, x: torch.Tensor, tables: Tables | None, batch: ForwardBatch) -> torch.Tensor:
        """Return [num_tokens, hidden_size] for x of that shape."""
        x = x + self.scaled(self.self_attn(self.input_layernorm(x), tables, batch))
        return x + self.scaled(self.feed_forward(self.post_attention_layernorm(x)))

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is added to the residual stream (Granite scales it)."""
        return x if self.multiplier == 1.0 else x * self.multiplier


class Decoder(nn.Module):
    """Embedding, layers, final norm."""

    def __init__(self, settings: Settings, layer_class: type[Layer]) -> None:
        super().__init__()
        self.multiplier = settings.embedding_multiplier
        self.embed_tokens = Embedding(
            settings.vocab_size, settings.hidden_size, dtype=settings.dtype, tied=settings.tied
        )
        self.layers = nn.ModuleList(
            layer_class(f"{settings.prefix}.layers.{index}", settings, layer)
            for index, layer in enumerate(settings.layers)
        )
        self.norm = RMSNorm(settings.hidden_size, settings.norm_eps, unit_offset=settings.unit_offset)
        ropes: list[Rope] = []
        for layer in settings.layers:
            if layer.rope is not None and layer.rope not in ropes:
                ropes.append(layer.rope)
        self.rotary_emb = nn.ModuleList(RotaryEmbedding(rope) for rope in ropes)
        self.rope_of_layer = [None if layer.rope is None else ropes.index(layer.rope) for layer in settings.layers]

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return what enters the first layer, [num_tokens, hidden_size]."""
        x = self.embed_tokens(token_ids)
        return x if self.multiplier == 1.0 else x * self.multiplier

    def forward(self, token_ids: torch.Tensor, batch: ForwardBatch, embeds: torch.Tensor | None = None) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden_size] after the final norm; `embeds` go in the tokens' place."""
        x = self.embed(token_ids) if embeds is None else embeds
        tables = [rotary(batch) for rotary in self.rotary_emb]
        for layer, rope in zip(self.layers, self.rope_of_layer, strict=True):
            x = layer(x, None if rope is None else tables[rope], batch)
        return self.norm(x)


class LlamaForCausalLM(nn.Module):
    """Llama 1 to 3.x, SmolLM and others that declare this architecture."""

    supported_tasks: ClassVar[tuple[str, ...]] = ("generate",)
    layer_class: ClassVar[type[Layer]] = Layer
    config_defaults: ClassVar[dict[str, Any]] = {}
    """What transformers assumes where config.json lacks a key (a null there is a value)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        config = replace(config, hf={**self.config_defaults, **config.hf})
        settings = self.settings(config)
        self.model = Decoder(settings, self.layer_class)
        self.lm_head = LMHead(
            settings.hidden_size,
            settings.vocab_size,
            tied_to=self.model.embed_tokens if settings.tied else None,
            divisor=settings.logits_divisor,
            soft_cap=settings.logits_soft_cap,
        )

    @classmethod
    def settings(cls, config: ModelConfig) -> Settings:
        """Read config.json. Raises `CheckpointError` on what is missing or not implemented."""
        bias = bool(config.get("attention_bias", False))
        mlp_bias = bool(config.get("mlp_bias", False))
        return replace(read_settings(config), qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)

    def forward(self, token_ids: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """See `CausalLM`."""
        return self.model(token_ids, batch)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM`."""
        return self.lm_head(hidden)
