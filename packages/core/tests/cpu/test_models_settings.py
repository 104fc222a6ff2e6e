"""config.json, old style and new: the same model comes out, and what is not implemented is refused by name."""

import importlib
import subprocess
import sys

import pytest

from modulm.config import ModelConfig
from modulm.errors import CheckpointError
from modulm.models.index import ARCHITECTURES

SHAPE = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def model_class(architecture):
    module, _, name = ARCHITECTURES[architecture].partition(":")
    return getattr(importlib.import_module(module), name)


def config(architecture, **keys):
    return ModelConfig(name="tiny", hf={**SHAPE, **keys}, architectures=[architecture])


def settings(architecture, **keys):
    cls = model_class(architecture)
    made = config(architecture, **keys)
    made.hf = {**cls.config_defaults, **made.hf}
    return cls.settings(made)


def test_listing_architectures_imports_no_torch():
    code = "import sys, modulm.models.index; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_listed_architectures_exist_and_are_sorted():
    assert list(ARCHITECTURES) == sorted(ARCHITECTURES)
    for architecture in ARCHITECTURES:
        assert model_class(architecture).__name__ == architecture
        assert model_class(architecture).supported_tasks == ("generate",)


@pytest.mark.parametrize(
    ("architecture", "old", "new"),
    [
        (
            "LlamaForCausalLM",
            {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
        ),
        ("Qwen2ForCausalLM", {"rope_theta": 500.0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        ("MixtralForCausalLM", {}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
        (
            "Phi3ForCausalLM",
            {
                "rope_scaling": {"type": "su", "short_factor": [1.0, 2.0], "long_factor": [2.0, 3.0]},
                "original_max_position_embeddings": 16,
                "partial_rotary_factor": 0.5,
            },
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 10_000.0,
                    "partial_rotary_factor": 0.5,
                    "short_factor": [1.0, 2.0],
                    "long_factor": [2.0, 3.0],
                    "original_max_position_embeddings": 4096,
                },
                "original_max_position_embeddings": 16,
            },
        ),
        (
            "Gemma3ForCausalLM",
            {
                "rope_theta": 900.0,
                "rope_local_base_freq": 90.0,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "sliding_window_pattern": 2,
            },
            {
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 90.0},
                    "full_attention": {"rope_type": "linear", "rope_theta": 900.0, "factor": 8.0},
                },
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
        ),
        (
            "Gemma2ForCausalLM",
            {"hidden_act": "gelu_pytorch_tanh"},
            {"layer_types": ["sliding_attention", "full_attention"] * 2, "attn_logit_softcapping": 50.0},
        ),
        (
            "SmolLM3ForCausalLM",
            {},
            {"no_rope_layers": [1, 1, 1, 0], "rope_parameters": {"rope_type": "default", "rope_theta": 2e6}},
        ),
    ],
)
def test_old_and_new_keys_mean_the_same(architecture, old, new):
    assert settings(architecture, **old) == settings(architecture, **new)


def test_a_missing_key_takes_the_architectures_default_and_null_does_not():
    assert settings("MistralForCausalLM").layers[0].window == 4096
    assert settings("MistralForCausalLM", sliding_window=None).layers[0].window is None
    assert settings("Gemma2ForCausalLM").logits_soft_cap == 30.0
    assert settings("Gemma2ForCausalLM", final_logit_softcapping=None).logits_soft_cap is None
    assert settings("Qwen3ForCausalLM").head_dim == 128
    assert settings("LlamaForCausalLM").head_dim == 8


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "yarm", "factor": 2.0}}, "Did you mean 'yarn'"),
        ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear"}}, "needs 'factor'"),
        ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "mrope"}}, "'mrope' is not implemented"),
        ("LlamaForCausalLM", {"partial_rotary_factor": 0.4}, "partial_rotary_factor=0.4 is refused"),
        ("LlamaForCausalLM", {"hidden_act": "silly"}, "Did you mean 'silu'"),
        ("LlamaForCausalLM", {"num_key_value_heads": 3}, "multiple of num_key_value_heads=3"),
        ("LlamaForCausalLM", {"hidden_size": None}, "no 'hidden_size'"),
        ("MistralForCausalLM", {"layer_types": ["full_attention"] * 4}, "layer_types="),
        ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("Gemma2ForCausalLM", {"layer_types": ["full_attention"]}, "1 layer_types and 4 layers"),
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping=30.0"),
        ("Gemma3ForCausalLM", {"layer_types": ["chunked_attention"] * 4}, "'chunked_attention'"),
        ("GptOssForCausalLM", {"swiglu_limit": 5.0}, "swiglu_limit=5.0 .* not implemented: kernels clamp at 7"),
        ("GptOssForCausalLM", {"swiglu_alpha": 2.0}, "swiglu_alpha=2.0 .* not implemented"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}, "2 no_rope_layers and 4 layers"),
        (
            "Phi3ForCausalLM",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 4}},
            "'short_factor' .* has 1 numbers, and 4 are needed",
        ),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(architecture, keys, message):
    with pytest.raises(CheckpointError, match=message):
        model_class(architecture)(config(architecture, **keys))
