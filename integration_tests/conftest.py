"""What several of these tests use: a checkpoint that is made in milliseconds, without torch."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models


@pytest.fixture(scope="session")
def tiny_llama():
    """A function that writes config.json and a tokenizer of 16 letters into a new folder, and returns the tensors."""
    return write_tiny_llama


def write_tiny_llama(folder, *, architecture="LlamaForCausalLM"):
    folder.mkdir()
    size, vocabulary, random = 8, 16, np.random.default_rng(1)
    config = {
        "architectures": [architecture], "model_type": "llama", "hidden_size": size, "intermediate_size": size,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": vocabulary,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": True, "eos_token_id": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "b"}))
    letters = {chr(ord("a") + index): index for index in range(vocabulary)}
    Tokenizer(models.BPE(letters, [])).save(str(folder / "tokenizer.json"))
    layer = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    norms = ["model.norm", *(f"model.layers.0.{name}_layernorm" for name in ("input", "post_attention"))]
    shapes = {f"model.layers.0.{name}.weight": (size, size) for name in layer}
    shapes |= {f"{name}.weight": (size,) for name in norms} | {"model.embed_tokens.weight": (vocabulary, size)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
