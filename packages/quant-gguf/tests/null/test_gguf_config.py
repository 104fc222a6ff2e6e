"""Metadata to config.json: what is missing is named, what is there keeps its value, rotary factors are not lost."""

import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm_quant_gguf.checkpoint import GGUFCheckpoint
from modulm_quant_gguf.names import ARCHITECTURES

EMBEDDING = {"token_embd.weight": np.zeros((7, 32), np.float32)}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "key",
    ["block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
     "attention.layer_norm_rms_epsilon"],
)  # fmt: skip
def test_a_missing_key_is_named(arch, key, write_gguf, required):
    metadata = required(arch)
    del metadata[f"{arch}.{key}"]
    path = write_gguf(arch, metadata, EMBEDDING)
    with pytest.raises(CheckpointError, match=rf"'{arch}\.{key}' is missing in .*model\.gguf"):
        GGUFCheckpoint.open(path).config()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.block_count", "two", "is a str"),
        ("llama.block_count", 1 << 31, "at most 4096"),
        ("llama.attention.head_count", 0, "is zero"),
        ("llama.attention.head_count_kv", [2, 2], "is a ndarray"),
        ("llama.rope.freq_base", -1.0, "positive"),
        ("llama.rope.dimension_count", 3, "not even"),
        ("llama.rope.scaling.type", "magic", "'magic'.*linear, yarn"),
        ("general.architecture", "mamba", "'mamba'.*gemma2, gemma3"),
        ("split.count", 3, "is 3.*gguf-split --merge"),
    ],
)
def test_a_senseless_value_is_named(key, value, message, write_gguf, required):
    arch = "mamba" if key == "general.architecture" else "llama"
    metadata = required("llama") | ({} if arch == "mamba" else {key: value})
    with pytest.raises(CheckpointError, match=f"'{key}' of .*{message}"):
        GGUFCheckpoint.open(write_gguf(arch, metadata, EMBEDDING)).config()


def config_of(write_gguf, required, arch="llama", metadata=(), tensors=()):
    path = write_gguf(arch, required(arch) | dict(metadata), EMBEDDING | dict(tensors))
    return GGUFCheckpoint.open(path).config()


def test_a_plain_llama(write_gguf, required):
    assert config_of(write_gguf, required) == {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 256,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": None,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": 7,
    }


def test_scaling_by_keys(write_gguf, required):
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert config_of(write_gguf, required, metadata=linear)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    yarn = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 8.0,
        "llama.rope.scaling.original_context_length": 32,
        "llama.rope.scaling.yarn_beta_fast": 16.0,
    }
    assert config_of(write_gguf, required, metadata=yarn)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
    }


def llama3_factors(factor, theta, dims, low=1.0, high=4.0, context=8192):
    """As llama.cpp's converter computes them, in float32 as it does."""
    factors = []
    for frequency in 1.0 / theta ** (np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)):
        wavelength = 2 * np.pi / frequency
        smooth = (context / wavelength - low) / (high - low)
        if wavelength < context / high:
            factors.append(1)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_factors_become_its_parameters(factor, write_gguf, required):
    metadata = {"llama.attention.key_length": 128, "llama.rope.freq_base": 500000.0}
    factors = {"rope_freqs.weight": llama3_factors(factor, 500000.0, 128)}
    assert config_of(write_gguf, required, metadata=metadata, tensors=factors)["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_other_factors_are_kept_as_they_are(write_gguf, required):
    factors = {"rope_freqs.weight": np.array([1, 1.5, 2.5, 7], np.float32)}
    scaling = config_of(write_gguf, required, tensors=factors)["rope_scaling"]
    assert scaling["rope_type"] == "longrope"
    assert scaling["short_factor"] == scaling["long_factor"] == [1, 1.5, 2.5, 7]
    assert scaling["attention_factor"] == 1.0


@pytest.mark.parametrize("factors", [[1, 1, 1], [1, 1, 1, 0], [1, 1, 1, np.nan]])
def test_senseless_factors_name_the_tensor(factors, write_gguf, required):
    with pytest.raises(CheckpointError, match="'rope_freqs.weight'"):
        config_of(write_gguf, required, tensors={"rope_freqs.weight": np.array(factors, np.float32)})


def test_olmo3_is_told_from_olmo2_by_its_window(write_gguf, required):
    assert config_of(write_gguf, required, "olmo2")["model_type"] == "olmo2"
    window = {"olmo2.attention.sliding_window": 16, "olmo2.attention.sliding_window_pattern": [True, False]}
    config = config_of(write_gguf, required, "olmo2", window)
    assert config["architectures"] == ["Olmo3ForCausalLM"]
    assert config["layer_types"] == ["sliding_attention", "full_attention"]


def test_gemma3_without_a_window_sees_everything(write_gguf, required):
    assert set(config_of(write_gguf, required, "gemma3")["layer_types"]) == {"full_attention"}
    config = config_of(write_gguf, required, "gemma3", {"gemma3.attention.sliding_window": 8, "gemma3.block_count": 7})
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]


def test_only_the_27b_gemmas_scale_attention_by_hidden_size(write_gguf, required):
    for arch, layers in (("gemma2", 46), ("gemma3", 62)):
        key = {f"{arch}.attention.key_length": 16}
        assert config_of(write_gguf, required, arch, key)["query_pre_attn_scalar"] == 16
        deep = key | {f"{arch}.block_count": layers}
        assert config_of(write_gguf, required, arch, deep)["query_pre_attn_scalar"] == 8


def test_every_token_that_ends_a_turn_is_listed(write_gguf, required):
    tokens = {
        "tokenizer.ggml.tokens": ["a", "<|eot_id|>", "<|end_of_text|>", "<|im_end|>"],
        "tokenizer.ggml.token_type": [1, 3, 3, 1],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.bos_token_id": 0,
    }
    checkpoint = GGUFCheckpoint.open(write_gguf("llama", required("llama") | tokens, EMBEDDING))
    assert checkpoint.generation_config() == {"bos_token_id": 0, "eos_token_id": [2, 1]}


def test_smollm2(smollm2):
    checkpoint = GGUFCheckpoint.open(smollm2)
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 64,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "vocab_size": 49152,
    }
    config = checkpoint.config()
    assert {key: config[key] for key in expected} == expected
    assert checkpoint.generation_config()["eos_token_id"][0] == 2
