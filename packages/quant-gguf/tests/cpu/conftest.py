"""llama.cpp's converter at its smallest: a transformers model's config and tensors -> metadata and tensors of a file.

Written from the converter's text; names come from gguf's own table. What is read back is for the tests to compare.
"""

import re

import gguf
import numpy as np
import pytest
import torch

STACKS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def metadata_of(config, arch):
    """The keys llama.cpp's converter writes, each where the config has a value."""
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": getattr(config, "head_dim", None),
        "attention.sliding_window": getattr(config, "sliding_window", None),
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.scaling.original_context_length": getattr(config, "original_max_position_embeddings", None),
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
        "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
        "attention.scale": getattr(config, "attention_multiplier", None),
        "embedding_scale": getattr(config, "embedding_multiplier", None),
        "residual_scale": getattr(config, "residual_multiplier", None),
        "logit_scale": getattr(config, "logits_scaling", None),
        "expert_count": getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None),
        "expert_used_count": getattr(config, "num_experts_per_tok", None),
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None),
    }
    if rope.get("rope_type") == "yarn":
        values |= {"rope.scaling.type": "yarn", "rope.scaling.factor": float(rope["factor"])}
        values["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return {f"{arch}.{key}": value for key, value in values.items() if value is not None}


def permuted(weight, heads):
    """The converter's `permute`: halves of a head become neighbours."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def converted(tensors, config, arch):
    """Tensors under GGUF's names and as the converter changes them; also raw rows, uint8 [rows, bytes]."""
    table = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), 16)
    out, stacks = {}, {}
    for name, tensor in tensors.items():
        values = tensor.float().numpy() if isinstance(tensor, torch.Tensor) else tensor
        if arch in ("llama", "granite", "smollm3") and re.search(r"[qk]_proj\.", name):
            values = permuted(values, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        expert = re.fullmatch(r"model\.layers\.(\d+)\..*experts\.(\d+)\.(\w+)\.(weight|bias)", name)
        if expert:
            stacks.setdefault(f"blk.{expert[1]}.ffn_{STACKS[expert[3]]}_exps.{expert[4]}", {})[int(expert[2])] = values
            continue
        stem, suffix = (name, "weight") if name.endswith("sinks") else name.rsplit(".", 1)
        out[f"{table.get_name(stem)}.{suffix}"] = values
    stacked = {name: np.stack([parts[index] for index in sorted(parts)]) for name, parts in stacks.items()}
    return out | stacked


def rope_tensors(config):
    rope = config.rope_parameters
    if rope.get("rope_type") == "longrope":
        lengths = ("long", "short")
        return {f"rope_factors_{length}.weight": np.array(rope[f"{length}_factor"], np.float32) for length in lengths}
    if rope.get("rope_type") == "llama3":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        plain = 1 / rope["rope_theta"] ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        return {"rope_freqs.weight": (plain / scaled).float().numpy()}
    return {}


@pytest.fixture(scope="session")
def convert():
    """`convert(tensors, config, arch)` -> metadata, tensors of the file."""
    return lambda tensors, config, arch: (
        metadata_of(config, arch), converted(tensors, config, arch) | rope_tensors(config)
    )  # fmt: skip
