"""What a decoder is built from: the numbers of config.json, read once and checked, for the modules of `llama.py`.

Variants read Llama's keys through `read_settings` and replace what is theirs. Knows names of keys; builds no module.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from modulm.config import ModelConfig
from modulm.errors import CheckpointError
from modulm.nn.moe import Experts
from modulm.nn.rope import Rope


@dataclass(frozen=True, kw_only=True)
class LayerSettings:
    """What may differ from layer to layer.

    Attributes:
        rope: None for a layer without position embedding.
        window: Sliding window of attention; None sees everything.
        experts: None for a plain MLP.
    """

    rope: Rope | None
    window: int | None = None
    experts: Experts | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything a decoder's modules ask for.

    Attributes:
        dtype: Compute dtype.
        prefix: Checkpoint name of the decoder; its parts are "<prefix>.layers.0..." and so on.
        activation: As config.json calls it.
        attention_scale: On query-key products.
        attention_soft_cap, logits_soft_cap: `cap * tanh(x / cap)`; None is off.
        qkv_bias, o_bias, mlp_bias: Which linear layers have a bias.
        sinks: Attention has a learned logit per head beside those of the keys.
        qk_norm: RMS norm of queries and keys before the rotation: of each head, or of all heads together.
        unit_offset: RMS norms multiply by 1 + weight.
        fused: The checkpoint stores QKV, and gate and up, as one matrix each.
        tied: The output projection is the embedding.
        embedding_multiplier, residual_multiplier, logits_divisor: Scalars on the way.
        layers: One entry per layer.
    """

    dtype: torch.dtype
    prefix: str = "model"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    activation: str
    attention_scale: float
    attention_soft_cap: float | None = None
    logits_soft_cap: float | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    sinks: bool = False
    qk_norm: Literal["head", "all"] | None = None
    unit_offset: bool = False
    fused: bool = False
    tied: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0
    layers: tuple[LayerSettings, ...] = field(default=())

    def with_windows(self, windows: "list[int | None]") -> "Settings":
        """Return the same with a sliding window (or None) per layer."""
        layers = [replace(layer, window=window) for layer, window in zip(self.layers, windows, strict=True)]
        return replace(self, layers=tuple(layers))


def read_settings(config: ModelConfig, *, default_theta: float = 10_000.0) -> Settings:
    """Read the keys that nearly all decoders share; all layers are alike.

    Raises `CheckpointError` on what is missing or impossible.
    """
    hidden_size, num_heads = int(config.need("hidden_size")), int(config.need("num_attention_heads"))
    num_kv_heads = int(config.get("num_key_value_heads", num_heads))
    head_dim = int(config.get("head_dim", hidden_size // num_heads))
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"num_attention_heads={num_heads!r} of model {config.name!r} is refused: "
            f"it must be a multiple of num_key_value_heads={num_kv_heads!r}."
        )
    layer = LayerSettings(rope=Rope.from_config(config.hf, head_dim, default_theta=default_theta))
    return Settings(
        dtype=getattr(torch, config.dtype),
        vocab_size=config.vocab_size,
        hidden_size=hidden_size,
        intermediate_size=int(config.need("intermediate_size")),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        activation=str(config.get("hidden_act", "silu")),
        attention_scale=head_dim**-0.5,
        tied=bool(config.get("tie_word_embeddings", False)),
        layers=(layer,) * int(config.need("num_hidden_layers")),
    )


_KINDS = ("full_attention", "sliding_attention")


def layer_types(config: ModelConfig) -> list[str]:
    """Return config.json's `layer_types`, one of two names per layer. Raises `CheckpointError` on any other name."""
    types = config.need("layer_types")
    unknown = sorted(set(types) - set(_KINDS))
    if unknown:
        raise CheckpointError(
            f"Model {config.name!r} has layers of type {unknown[0]!r}, which is not implemented for "
            f"{', '.join(config.architectures)}. There are: {', '.join(_KINDS)}."
        )
    count = int(config.need("num_hidden_layers"))
    if len(types) != count:
        raise CheckpointError(f"Model {config.name!r} has {len(types)} layer_types and {count} layers; each needs one.")
    return list(types)


def windows_by_type(config: ModelConfig, types: list[str]) -> list[int | None]:
    """Return `sliding_window` for layers of that type, None for the others."""
    return [int(config.need("sliding_window")) if kind == "sliding_attention" else None for kind in types]


def alternating_windows(config: ModelConfig) -> list[int | None]:
    """Return windows by `layer_types`; without these every other layer has one, the first among them."""
    if config.get("layer_types") is not None:
        return windows_by_type(config, layer_types(config))
    layers = range(int(config.need("num_hidden_layers")))
    return windows_by_type(config, [_KINDS[(index + 1) % 2] for index in layers])


def refuse(config: ModelConfig, key: str, *, why: str, allowed: tuple[Any, ...] = (None, False)) -> None:
    """Raise `CheckpointError` where config.json has a value of `key` that would change the result and is not built."""
    value = config.hf.get(key)
    if value not in allowed:
        raise CheckpointError(f"{key}={value!r} of model {config.name!r} is not implemented: {why}.")
