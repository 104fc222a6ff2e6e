"""Logits of every architecture equal transformers' (eager, float32) on tiny random checkpoints, to 1e-4.

Checkpoints are written by `save_pretrained` and read back by name. Caches start as NaN, freed blocks become NaN again
and tables are shuffled, so a read of a wrong slot cannot pass. Beside every step of the model its recorded graph,
written out and read back, is interpreted on caches of its own and must give the same bits.
"""

import importlib
import json
from collections import Counter

import pytest
import torch
import transformers
from safetensors.torch import load_file

from modulm.models.index import ARCHITECTURES
from modulm_testkit.checkpoints import randomise
from modulm_testkit.oracles.logits import TOLERANCE, logits_of, worst
from modulm_testkit.steps import Sequence, Stepper, batched, chunked, prefix_hit, prompt, whole

BASE = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [2.0, 2.5, 3.0, 3.5, 4.0, 5.0],
}
ALTERNATING = ["sliding_attention", "full_attention"] * 2

CONFIGS = {
    "LlamaForCausalLM": {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True, "head_dim": 32},
    "MistralForCausalLM": {"sliding_window": 9, "head_dim": 24},
    "Qwen2ForCausalLM": {
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 2,
        "tie_word_embeddings": True,
        "rope_parameters": YARN,
    },
    "Qwen3ForCausalLM": {
        "head_dim": 32,
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
        "attention_bias": True,
    },
    "Phi3ForCausalLM": {
        "sliding_window": 13,
        "rope_parameters": LONGROPE,
        "original_max_position_embeddings": 16,
        "num_key_value_heads": 4,
    },
    "Gemma2ForCausalLM": {
        "sliding_window": 9,
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 4.0,
        "rope_parameters": LINEAR,
        "layer_types": ALTERNATING,
    },
    "Gemma3ForCausalLM": {
        "sliding_window": 9,
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "final_logit_softcapping": 5.0,
        "layer_types": ALTERNATING,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
        },
    },
    "Olmo2ForCausalLM": {"attention_bias": True, "num_key_value_heads": 2},
    "GraniteForCausalLM": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.6,
        "logits_scaling": 2.0,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "SmolLM3ForCausalLM": {
        "no_rope_layers": [1, 0, 1, 1],
        "use_sliding_window": True,
        "sliding_window": 9,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "GptOssForCausalLM": {
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "sliding_window": 9,
        "layer_types": ALTERNATING,
        "rope_parameters": {**YARN, "truncate": False},
        "head_dim": 16,
    },
    "MixtralForCausalLM": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 11},
    "Qwen3MoeForCausalLM": {
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        "norm_topk_prob": True,
        "use_sliding_window": True,
        "sliding_window": 11,
        "head_dim": 24,
    },
}


def config_class(architecture):
    name = architecture.removesuffix("ForCausalLM")
    return transformers.Gemma3TextConfig if name == "Gemma3" else getattr(transformers, f"{name}Config")


def tiny(architecture, folder, **overrides):
    """Return transformers' model and ours, read from what the former saved."""
    torch.manual_seed(0)
    options = {**BASE, **CONFIGS.get(architecture, {}), **overrides}
    config = config_class(architecture)(**options, attn_implementation="eager")
    theirs = randomise(getattr(transformers, architecture)(config))
    theirs.save_pretrained(folder)
    hf = json.loads((folder / "config.json").read_text())
    return theirs, Engine(hf, load_file(folder / "model.safetensors"))


class Engine(Stepper):
    """The model of core that config.json names, with its recorded graph beside it."""

    def __init__(self, hf, tensors):
        module, _, name = ARCHITECTURES[hf["architectures"][0]].partition(":")
        super().__init__(getattr(importlib.import_module(module), name), hf, tensors, recorded=True)


MODES = {"whole": whole, "chunked": chunked, "batched": batched, "prefix hit": prefix_hit}


def differences(theirs, ours, run):
    """The greatest difference from transformers, of all logits that a way to run the model gives."""
    return worst(run(ours), lambda tokens: logits_of(theirs, tokens))


@pytest.fixture(scope="module")
def table(request):
    """Collects the greatest differences; printed at the end of the module."""
    torch.set_num_threads(1)
    rows, recorded = {}, {}
    yield rows, recorded
    width = max(map(len, rows), default=30)
    lines = [f"{'greatest difference of logits':{width}} " + "".join(f"{mode:>12}" for mode in MODES)]
    lines += [f"{name:{width}} " + "".join(f"{row[mode]:12.1e}" for mode in row) for name, row in rows.items()]
    lines += [f"operations of {name}: {counts}" for name, counts in recorded.items()]
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join(lines))


def check(name, theirs, ours, table, modes=MODES):
    rows, recorded = table
    row = rows.setdefault(name, {})
    counts = Counter(type(op).__name__ for op in (*ours.graph.forward.ops, *ours.graph.logits.ops))
    if name in CONFIGS:
        recorded[name] = f"{counts.total()} = " + ", ".join(f"{count} {op}" for op, count in sorted(counts.items()))
    for mode, run in modes.items():
        row[mode] = differences(theirs, ours, run)
    assert max(row.values()) < TOLERANCE, f"{name}: {row}"


@pytest.mark.parametrize("architecture", CONFIGS)
def test_logits_equal_transformers(architecture, tmp_path, table):
    theirs, ours = tiny(architecture, tmp_path)
    assert ours.source.read == set(ours.source.tensors), "every tensor of the checkpoint is read"
    check(architecture, theirs, ours, table)


ROPES = {
    "default": {"rope_type": "default", "rope_theta": 100.0},
    "linear": LINEAR,
    "dynamic": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0},
    "yarn": YARN,
    "yarn, all options": {
        **YARN,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
        "truncate": False,
    },
    "yarn, attention_factor": {**YARN, "attention_factor": 1.3},
    "llama3": LLAMA3,
}


def short_beside_long(ours):
    """A neighbour past the original length must not change a short sequence, nor the other way about."""
    sequences = [Sequence(prompt(length, length), known=length) for length in (11, 37, 16)]
    got = ours.step(*[(s, len(s.tokens)) for s in sequences])
    return [(logits, s.tokens, 0) for logits, s in zip(got, sequences, strict=True)]


ROPE_MODES = {"whole": whole, "chunked": chunked, "batched": short_beside_long, "prefix hit": prefix_hit}


@pytest.mark.parametrize("kind", ROPES)
def test_rotary_kinds_equal_transformers_past_the_original_length(kind, tmp_path, table):
    options = {"rope_parameters": dict(ROPES[kind]), "max_position_embeddings": 16}
    modes = dict(ROPE_MODES)
    if kind == "dynamic":
        del modes["prefix hit"]  # the prefix keeps the rotation of the sequence that wrote it, which had another length
    theirs, ours = tiny("LlamaForCausalLM", tmp_path, head_dim=16, **options)
    check(f"rope: {kind}", theirs, ours, table, modes)


@pytest.mark.parametrize("extra", [{}, {"factor": 3.0}, {"attention_factor": 1.2}], ids=str)
def test_longrope_equals_transformers_past_the_original_length(extra, tmp_path, table):
    options = {"rope_parameters": {**LONGROPE, **extra}, "original_max_position_embeddings": 16}
    theirs, ours = tiny("Phi3ForCausalLM", tmp_path, sliding_window=None, **options)
    check(f"rope: longrope {extra or ''}", theirs, ours, table, ROPE_MODES)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_decoding_across_the_original_length_equals_transformers_with_a_cache(kind, tmp_path):
    if kind == "dynamic":
        options = {"rope_parameters": dict(ROPES[kind]), "max_position_embeddings": 16}
        theirs, ours = tiny("LlamaForCausalLM", tmp_path, **options)
    else:
        theirs, ours = tiny("Phi3ForCausalLM", tmp_path, sliding_window=None)
    tokens, cache, sequence = prompt(24, 7), transformers.DynamicCache(), Sequence(prompt(24, 7))
    for start, count in [(0, 12), *((position, 1) for position in range(12, 24))]:
        with torch.inference_mode():
            want = theirs(torch.tensor([tokens[start : start + count]]), cache=cache).logits[0]
        (got,) = ours.step((sequence, count))
        assert (got - want).abs().max() < TOLERANCE, f"position {start}"


NULL = {"rope_type": "default", "rope_theta": 10.0}


@pytest.mark.parametrize(
    ("architecture", "change"),
    [
        ("LlamaForCausalLM", {"rope_parameters": NULL}),
        ("MistralForCausalLM", {"sliding_window": 10}),
        ("Qwen2ForCausalLM", {"layer_types": ["full_attention"] * 4}),
        ("Phi3ForCausalLM", {"original_max_position_embeddings": 64}),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": None}),
        ("Gemma2ForCausalLM", {"query_pre_attn_scalar": 32}),
        ("Gemma3ForCausalLM", {"rope_parameters": {"sliding_attention": NULL, "full_attention": NULL}}),
        ("GraniteForCausalLM", {"attention_multiplier": 0.25}),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 1, 1, 1]}),
        ("SmolLM3ForCausalLM", {"use_sliding_window": False}),
        ("GptOssForCausalLM", {"layer_types": ALTERNATING[::-1]}),
        ("GptOssForCausalLM", {"num_experts_per_tok": 2}),
        ("MixtralForCausalLM", {"num_experts_per_tok": 3}),
        ("Qwen3MoeForCausalLM", {"norm_topk_prob": False}),
    ],
    ids=str,
)
def test_the_comparison_notices_a_wrong_setting(architecture, change, tmp_path):
    theirs, ours = tiny(architecture, tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    wrong = Engine({**hf, **change}, ours.source.tensors)
    assert differences(theirs, wrong, whole) > 100 * TOLERANCE


def test_gemma3_reads_the_language_model_of_a_checkpoint_with_vision(tmp_path, table):
    text = {**BASE, **CONFIGS["Gemma3ForCausalLM"], "final_logit_softcapping": None}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, attn_implementation="eager")
    theirs = randomise(transformers.Gemma3ForConditionalGeneration(config))
    theirs.save_pretrained(tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    hf = {**hf, **hf["text_config"], "architectures": hf["architectures"]}
    ours = Engine(hf, load_file(tmp_path / "model.safetensors"))
    check("Gemma3ForConditionalGeneration", theirs, ours, table)


@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
def test_stacked_experts_are_read_too(architecture, tmp_path):
    theirs, ours = tiny(architecture, tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    stacked = Engine(hf, dict(theirs.state_dict()))
    assert any(name.endswith("experts.gate_up_proj") for name in stacked.source.read)
    assert differences(theirs, stacked, whole) < TOLERANCE
