"""Tiny checkpoints from a seed, as folders on disk: what suites and plugins' own tests load.

`random_llama` needs numpy alone; `tiny_model` and `tiny_llama` are made by transformers (modulm-testkit[models]), whose
own logits are then an oracle. Knows no format but safetensors.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

TEXT = (
    "The quick brown fox jumps over the lazy dog. the the the a b c d e f g. Zwölf Boxkämpfer jagen Viktor quer "
    "über den großen Sylter Deich. Съешь же ещё этих мягких французских булок, да выпей чаю. 我能吞下玻璃而不伤身体。 "
    "def f(x): return x + 1  # comment 0123456789 !?.,;:()[]{} "
)
"""What tokenizers are trained on."""
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SIZES = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "uint8": "U8", "int32": "I32"}
_TYPES |= {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"}


def write_tokenizer(folder: Path, vocab_size: int = SIZES["vocab_size"]) -> int:
    """Train a byte-level BPE on TEXT; ids 0 and 1 are <s> and </s>. Return the size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    size: int = tokenizer.get_vocab_size()
    return size


def tiny_llama(folder: Path, *, seed: int = 7, **changes: Any) -> Path:
    """Write a Llama with a tokenizer: 2 layers, 4 heads, 2 KV heads, 256 positions. `changes` go into its config."""
    vocab_size = write_tokenizer(folder)
    config = {
        **SIZES,
        "vocab_size": vocab_size,
        "bos_token_id": 0,
        "eos_token_id": [1, 5],
        "tie_word_embeddings": False,
    }
    tiny_model(folder, "LlamaForCausalLM", {**config, "initializer_range": 0.3, **changes}, seed=seed)
    return folder


def tiny_mixture(folder: Path) -> Path:
    """Write a Qwen3-MoE with a tokenizer: 2 layers of 4 experts, of which 2 are asked for each token."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    sizes = {**SIZES, "vocab_size": write_tokenizer(folder), "hidden_size": 64, "head_dim": 16, "bos_token_id": 0}
    tiny_model(folder, "Qwen3MoeForCausalLM", {**sizes, **experts, "eos_token_id": 1, "initializer_range": 0.3})
    return folder


def tiny_model(folder: Path, architecture: str, config: Mapping[str, Any], *, seed: int = 0) -> Any:
    """Write a random model of an architecture of transformers, float32, and return transformers' own."""
    import torch
    import transformers

    model_class = getattr(transformers, architecture)
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**config)).float().eval()
    model.save_pretrained(folder)
    return model


def random_llama(seed: int = 0) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return config.json's contents and the tensors of a Llama of random numbers, float32, by transformers' names."""
    rng = np.random.default_rng(seed)
    hidden, wide = SIZES["hidden_size"], SIZES["intermediate_size"]
    narrow = hidden * SIZES["num_key_value_heads"] // SIZES["num_attention_heads"]
    attention = {"q_proj": (hidden, hidden), "k_proj": (narrow, hidden), "v_proj": (narrow, hidden)}
    shapes: dict[str, tuple[int, ...]] = {f"self_attn.{name}": shape for name, shape in attention.items()}
    shapes |= {"self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden)}
    shapes |= {"mlp.down_proj": (hidden, wide), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    layers = range(SIZES["num_hidden_layers"])
    named = {f"model.layers.{layer}.{name}": shape for layer in layers for name, shape in shapes.items()}
    named |= {"model.embed_tokens": (SIZES["vocab_size"], hidden), "lm_head": (SIZES["vocab_size"], hidden)}
    named["model.norm"] = (hidden,)
    tensors = {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in named.items()}
    config = {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-6}
    return {**config, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32"}, tensors


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """Write config.json and model.safetensors."""
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write one file: a length, a JSON header, and the data of all tensors without gaps."""
    header: dict[str, Any] = {}
    end = 0
    for name, array in tensors.items():
        place = [end, end := end + array.nbytes]
        header[name] = {"dtype": _TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": place}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(raw)) + raw)
        for array in tensors.values():
            stream.write(np.ascontiguousarray(array).tobytes())


def randomise(model: Any, seed: int = 0) -> Any:
    """Give every parameter of transformers' model a scale at which it matters, norms and biases too; return it."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    centred_at_zero = "Gemma" in type(model).__name__
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(0.3 * noise if centred_at_zero else 1 + 0.3 * noise)
            elif parameter.ndim == 1 or "embed" in name:
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
    return model.eval()
