"""Metadata -> the keys of transformers' config.json and generation_config.json, for every architecture in `names.py`.

A key that the model cannot do without and the file lacks is a `CheckpointError` that names it. Rotary embeddings are in
`rope.py`. Source of the keys: docs/gguf.md of ggml, and llama.cpp's conversion scripts read backwards.
"""

from collections.abc import Callable
from typing import Any

from modulm_quant_gguf.header import Header
from modulm_quant_gguf.metadata import Keys, Metadata
from modulm_quant_gguf.names import architecture
from modulm_quant_gguf.rope import rope_config

_CLASSES = {
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
    "gpt-oss": ("GptOssForCausalLM", "gpt_oss"),
    "granite": ("GraniteForCausalLM", "granite"),
    "llama": ("LlamaForCausalLM", "llama"),
    "olmo2": ("Olmo2ForCausalLM", "olmo2"),
    "phi3": ("Phi3ForCausalLM", "phi3"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    "smollm3": ("SmolLM3ForCausalLM", "smollm3"),
}
_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
_MAX_LAYERS = 4096
_CONTROL = 3
# Files name one token that ends a turn, chat models need several: these end one too wherever they are control tokens.
_ENDS = (
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"),
    *("<|return|>", "<|call|>"),
)


def model_config(header: Header) -> dict[str, Any]:
    """Return config.json's keys. Raises `CheckpointError` naming the key that is missing or makes no sense."""
    arch = architecture(header)
    keys = Keys(header.metadata, arch)
    class_name, model_type = _CLASSES[arch]
    config = {
        "architectures": [class_name],
        "model_type": model_type,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "vocab_size": _vocab_size(header, keys),
        "torch_dtype": _dtype(header),
        "hidden_act": "silu",
        "attention_bias": arch != "qwen2" and "blk.0.attn_q.bias" in header.tensors,  # Qwen 2 has them unasked
        **_sizes(keys),
        # None, where the file has no id, keeps readers from taking the default of a model's class for it.
        **dict.fromkeys(_IDS),
        **_special_ids(header.metadata),
    }
    config |= rope_config(header, keys, config["head_dim"])
    if arch in _EXTRAS:
        config |= _EXTRAS[arch](keys, config, header)
    return config


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """Return generation_config.json's keys; `eos_token_id` lists every token that ends a turn."""
    config = _special_ids(metadata)
    ends = [config.get("eos_token_id", -1)]
    ends += [metadata.read(f"tokenizer.ggml.{name}_token_id", int, -1) for name in ("eot", "eom")]
    if "tokenizer.ggml.tokens" in metadata:
        kinds = metadata.numbers("tokenizer.ggml.token_type", metadata.count("tokenizer.ggml.tokens"), _CONTROL)
        ids = [id_ for id_, kind in enumerate(kinds) if kind == _CONTROL]
        controls = dict(zip(metadata.strings("tokenizer.ggml.tokens", ids), ids, strict=True))
        ends += [controls.get(token, -1) for token in _ENDS]
    unique = list(dict.fromkeys(end for end in ends if end >= 0))
    return config | ({"eos_token_id": unique} if unique else {})


def _vocab_size(header: Header, keys: Keys) -> int:
    """The embedding's rows, which are the truth: converters drop rows that have no token."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is not None:
        return embedding.shape[0]
    if "vocab_size" in keys:
        return keys.whole("vocab_size")
    return header.metadata.count("tokenizer.ggml.tokens")


def _dtype(header: Header) -> str:
    """The type to compute in. Quantized files do not say; bfloat16 holds the range of whatever they came from."""
    types = {entry.type.name for entry in header.tensors.values() if len(entry.shape) > 1}
    return {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}.get(frozenset(types), "bfloat16")


def _sizes(keys: Keys) -> dict[str, Any]:
    heads = keys.positive("attention.head_count")
    hidden = keys.positive("embedding_length")
    layers = keys.positive("block_count")
    if layers > _MAX_LAYERS:
        raise keys.refusal("block_count", f"is {layers}; at most {_MAX_LAYERS} are allowed")
    return {
        "hidden_size": hidden,
        "intermediate_size": keys.positive("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.positive("attention.head_count_kv", heads),
        "head_dim": keys.positive("attention.key_length", hidden // heads),
        "max_position_embeddings": keys.positive("context_length"),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
    }


def _special_ids(metadata: Metadata) -> dict[str, int]:
    found = {name: metadata.read(f"tokenizer.ggml.{key}_token_id", int, -1) for name, key in _IDS.items()}
    return {name: id_ for name, id_ in found.items() if id_ >= 0}


def _layer_types(keys: Keys, config: dict[str, Any], period: int) -> list[str]:
    """One type a layer, from the file's pattern; without one every `period`-th layer sees everything."""
    layers = config["num_hidden_layers"]
    key = "attention.sliding_window_pattern"
    pattern: list[Any] = [(layer + 1) % period for layer in range(layers)]
    if key in keys:
        pattern = keys.metadata.numbers(f"{keys.arch}.{key}", layers)
    return ["sliding_attention" if sliding else "full_attention" for sliding in pattern]


def _gemma(keys: Keys, config: dict[str, Any], period: int, layers_of_27b: int) -> dict[str, Any]:
    # The scale of attention is not in the file: only the 27B models, known by their depth, do not use head_dim.
    is_27b = config["num_hidden_layers"] == layers_of_27b
    scale = config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scale,
        "sliding_window": keys.positive("attention.sliding_window", 4096),
        "layer_types": _layer_types(keys, config, period),
    }


def _gemma2(keys: Keys, config: dict[str, Any], header: Header) -> dict[str, Any]:
    return _gemma(keys, config, 2, 46) | {
        "attn_logit_softcapping": keys.real("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.real("final_logit_softcapping", 30.0),
    }


def _gemma3(keys: Keys, config: dict[str, Any], header: Header) -> dict[str, Any]:
    period = 6 if "attention.sliding_window" in keys else 1
    return _gemma(keys, config, period, 62) | {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": keys.real("final_logit_softcapping", None),
        "rope_local_base_freq": keys.real("rope.freq_base_swa", 10000.0),
        "sliding_window_pattern": period,
    }


def _gpt_oss(keys: Keys, config: dict[str, Any], header: Header) -> dict[str, Any]:
    # Files do not say that its YaRN leaves the bounds of the ramp as they come out, between two dimensions.
    exact = {"rope_scaling": config["rope_scaling"] | {"truncate": False}} if "rope_scaling" in config else {}
    return exact | {
        "intermediate_size": keys.positive("expert_feed_forward_length", config["intermediate_size"]),
        "num_local_experts": keys.positive("expert_count"),
        "num_experts_per_tok": keys.positive("expert_used_count"),
        "sliding_window": keys.positive("attention.sliding_window"),
        "layer_types": _layer_types(keys, config, 2),
    }


def _granite(keys: Keys, config: dict[str, Any], header: Header) -> dict[str, Any]:
    return {
        "attention_multiplier": keys.real("attention.scale", config["head_dim"] ** -0.5),
        "embedding_multiplier": keys.real("embedding_scale", 1.0),
        "residual_multiplier": keys.real("residual_scale", 1.0),
        "logits_scaling": keys.real("logit_scale", 1.0),
    }


def _llama(keys: Keys, config: dict[str, Any], header: Header) -> dict[str, Any]:
    if keys.whole("expert_count", 0) == 0:
        return {"mlp_bias": "blk.0.ffn_up.bias" in header.tensors}
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": keys.whole("expert_count"),
        "num_experts_per_tok": keys.positive("expert_used_count"),
        "sliding_window": None,
    }


def _olmo2(keys: Keys, config: dict[str, Any], header: Header) -> dict[str, Any]:
    window = keys.whole("attention.sliding_window", 0)
    if not window:
        return {}
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": _layer_types(keys, config, 4),
    }


def _phi3(keys: Keys, config: dict[str, Any], header: Header) -> dict[str, Any]:
    return {
        "sliding_window": keys.whole("attention.sliding_window", 0) or None,
        "original_max_position_embeddings": keys.positive(
            "rope.scaling.original_context_length", config["max_position_embeddings"]
        ),
    }


def _qwen3moe(keys: Keys, config: dict[str, Any], header: Header) -> dict[str, Any]:
    return {
        "num_experts": keys.positive("expert_count"),
        "num_experts_per_tok": keys.positive("expert_used_count"),
        "moe_intermediate_size": keys.positive("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _smollm3(keys: Keys, config: dict[str, Any], header: Header) -> dict[str, Any]:
    # Not in the file; llama.cpp, too, leaves every fourth layer without positions.
    layers = range(config["num_hidden_layers"])
    return {
        "no_rope_layer_interval": 4,
        "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in layers],
        "use_sliding_window": False,
        "sliding_window": None,
        "layer_types": ["full_attention" for _ in layers],
    }


_EXTRAS: dict[str, Callable[[Keys, dict[str, Any], Header], dict[str, Any]]] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
    "granite": _granite,
    "llama": _llama,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "qwen3moe": _qwen3moe,
    "smollm3": _smollm3,
}
