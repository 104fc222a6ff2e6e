"""Tiny models of every architecture, written as llama.cpp's converter does, come back as transformers had them.

The oracle is transformers itself: our config and tensors, saved as a folder, must load without a missing or unexpected
name and give the original's logits. `conftest.py`
writes the file.
"""

import json

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from modulm_quant_gguf.checkpoint import GGUFCheckpoint
from modulm_quant_gguf.names import ARCHITECTURES
from modulm_quant_gguf.scheme import GGUFScheme

SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
MODELS = {
    "llama": ("llama", {"tie_word_embeddings": False, "rope_theta": 50000.0}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, as many KV heads": ("llama", {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 8}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3moe": (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
    ),
    "phi3": ("phi3", {"sliding_window": 16}),
    "phi3, long": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 64}),
    "gemma2": ("gemma2", {"tie_word_embeddings": True, "query_pre_attn_scalar": 16, "sliding_window": 8}),
    "gemma3": ("gemma3_text", {"query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 7}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": 8}),
    "granite": (
        "granite",
        {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 4.0},
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}),
}
GGUF_ARCH = {"mixtral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "olmo3": "olmo2"}


@pytest.fixture(params=MODELS)
def original(request, tmp_path, write_gguf, convert):
    """A tiny model, its tensors as transformers saves them, and the GGUF file made of them."""
    model_type, options = MODELS[request.param]
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **(SIZES | {"tie_word_embeddings": False} | options))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.3, 0.2)
    model.save_pretrained(tmp_path / "original")
    tensors = load_file(tmp_path / "original/model.safetensors")
    arch = GGUF_ARCH.get(model_type, model_type)
    return model, tensors, write_gguf(arch, *convert(tensors, config, arch))


def test_tensors_names_and_config_come_back(original, tmp_path):
    model, tensors, path = original
    checkpoint = GGUFCheckpoint.open(path)
    assert set(checkpoint.tensor_names()) == set(tensors)
    for name, tensor in tensors.items():
        assert checkpoint.info(name).shape == tuple(tensor.shape)
        # Gemma's norms went through + 1 and - 1 in float32.
        torch.testing.assert_close(
            torch.tensor(checkpoint.tensor(name)), tensor, rtol=0, atol=1e-7 if "norm" in name else 0
        )
    folder = tmp_path / "back"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(checkpoint.config()))
    ours = {name: torch.tensor(checkpoint.tensor(name)) for name in checkpoint.tensor_names()}
    save_file(ours, folder / "model.safetensors", metadata={"format": "pt"})
    back, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids = torch.randint(3, 96, (2, 100), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(back.eval()(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


def test_every_architecture_is_among_the_models():
    """But gpt-oss, whose experts transformers stores in another shape: `test_gguf_engine.py` has it."""
    tested = {GGUF_ARCH.get(model_type, model_type) for model_type, _ in MODELS.values()}
    assert tested | {"gpt-oss"} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", ["self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"])
def test_rows_of_quantized_weights_are_put_in_order(name, write_gguf, convert):
    """Q8_0 rows in the file are in the converter's order; the weight's are in transformers', and near the original."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **SIZES)
    tensors = dict(AutoModelForCausalLM.from_config(config, dtype=torch.float32).state_dict())
    tensors.pop("lm_head.weight")
    kind = gguf.GGMLQuantizationType.Q8_0
    metadata, numbers = convert(tensors, config, "llama")
    quantized = {
        key: (gguf.quants.quantize(value, kind), kind) if value.ndim == 2 else value for key, value in numbers.items()
    }
    checkpoint = GGUFCheckpoint.open(write_gguf("llama", metadata, quantized))
    module = f"model.layers.1.{name}"
    expected = tensors[f"{module}.weight"]
    weight = GGUFScheme.from_checkpoint(checkpoint).weight(checkpoint, module, *expected.shape)
    scales, minimums = (part.astype(np.float32).repeat(32, axis=1) for part in (weight.scales, weight.minimums))
    values = scales * weight.codes.astype(np.float32) + minimums
    np.testing.assert_allclose(values, expected, rtol=0, atol=float(expected.abs().max()) / 200)
    np.testing.assert_array_equal(checkpoint.tensor(f"{module}.weight"), values)
