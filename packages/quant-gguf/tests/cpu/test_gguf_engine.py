"""Files of quantized tensors through the whole engine: logits are transformers' with gguf's numbers, in float64.

Importance-matrix types are random blocks, as only llama.cpp makes such from numbers; the others gguf quantizes.
"""

import json
import re

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from modulm_testkit.checkpoints import SIZES, tiny_model, write_tokenizer
from modulm_testkit.scored import EXACT, PROMPTS, scored, scored_by_transformers

WIDE = {**SIZES, "hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "tie_word_embeddings": False}
EXPERTS = {"num_experts_per_tok": 2, "bos_token_id": 0, "eos_token_id": 1}
GRIDS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS", "IQ4_NL", "MXFP4", "NVFP4")
OF_A_LAYER = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SCALE_AT = {"TQ1_0": 52, "TQ2_0": 64}
LEAF = re.compile(r"model\.layers\.(\d+)\..*\.(\w+)\.weight")


def rows_of(kind, numbers, rng):
    """Rows of a type: of these numbers where gguf can, else random ones, as large as they are."""
    try:
        return gguf.quants.quantize(numbers, kind)
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (len(numbers), numbers.shape[1] // block, size), dtype=np.uint8)
    set_scale(raw, kind.name, 1.0)
    spread = gguf.quants.dequantize(raw.reshape(len(raw), -1), kind).std()
    set_scale(raw, kind.name, numbers.std() / spread)
    return raw.reshape(len(raw), -1)


def set_scale(raw, name, scale):
    """Give all blocks a scale: a float16, which IQ1_M has in four pieces."""
    half = np.array([scale], "<f2")
    if name == "IQ1_M":
        for word in range(4):
            high = raw[..., 49 + 2 * word] & 0x0F
            raw[..., 49 + 2 * word] = high | int(half.view("<u2")[0]) >> 4 * word << 4 & 0xF0
        return
    at = SCALE_AT.get(name, 0)
    raw[..., at : at + 2] = half.view(np.uint8)


@pytest.fixture
def quantized(tmp_path, write_gguf, convert):
    """`quantized(architecture, config, arch, kinds)` -> file, transformers' model. `kinds`: (layer, leaf) -> type.

    `apart` and `together` turn tensors as transformers saves them into one for each matrix, and back.
    """

    def make(architecture, config, arch, kinds, *, apart=dict, together=dict):
        folder = tmp_path / "model"
        folder.mkdir()
        vocab_size = write_tokenizer(folder)
        model = tiny_model(folder, architecture, {**WIDE, **config, "vocab_size": vocab_size, "initializer_range": 0.2})
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "sinks")):
                torch.nn.init.normal_(parameter)
        model.save_pretrained(folder)
        tensors = apart(load_file(folder / "model.safetensors"))
        rng, raw, kind_of = np.random.default_rng(0), {}, {}
        for name, tensor in tensors.items():
            found = LEAF.fullmatch(name)
            if found and (kind := kinds(int(found[1]), found[2])):
                raw[name] = rows_of(gguf.GGMLQuantizationType[kind], tensor.numpy(), rng)
                kind_of[name] = gguf.GGMLQuantizationType[kind]
                tensors[name] = torch.tensor(gguf.quants.dequantize(raw[name], kind_of[name]))
        save_file(together(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        metadata, numbers = convert(tensors, model.config, arch)
        column = {name: np.full((len(rows), 1), int(kind_of[name])) for name, rows in raw.items()}
        kinds_there = convert(column, model.config, arch)[1]
        for name, rows in convert(raw, model.config, arch)[1].items():
            numbers[name] = rows, gguf.GGMLQuantizationType(int(kinds_there[name].flat[0]))
        path = write_gguf(arch, metadata | tokenizer_of(folder), numbers)
        options = {"experts_implementation": "eager"} if "num_experts_per_tok" in config else {}
        return path, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)

    return make


def tokenizer_of(folder):
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": [" ".join(pair) for pair in model["merges"]]}
    return {f"tokenizer.ggml.{key}": value for key, value in (keys | {"eos_token_id": 1}).items()}


def check(path, theirs, **served):
    ran = scored(path, PROMPTS, **EXACT)
    for want, got in zip(scored_by_transformers(theirs, PROMPTS), ran.logprobs, strict=True):
        assert want.std() > 1
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-4)  # both add up in float32, in orders of their own
    for kind, count in served.items():
        assert ran.num_served(kind) == count, ran.kernels


def test_every_importance_matrix_and_ternary_type(quantized):
    """A type for every matrix, over two layers; q, k, v and gate, up are fused where their types agree."""
    kinds = [*GRIDS[:7], "TQ1_0", "TQ2_0", *GRIDS[7:], "IQ3_S"]
    path, theirs = quantized(
        "LlamaForCausalLM", {}, "llama", lambda layer, leaf: kinds[7 * layer + OF_A_LAYER.index(leaf)]
    )
    check(path, theirs, VectorCodebook=8, Codebook4=4, GroupedInt=2)


MIXTURES = {
    "mixtral": ("MixtralForCausalLM", "llama", {"num_local_experts": 4, "sliding_window": None}),
    "qwen3moe": (
        "Qwen3MoeForCausalLM",
        "qwen3moe",
        {"num_experts": 4, "moe_intermediate_size": 256, "norm_topk_prob": True},
    ),
}
STACKED = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


@pytest.mark.parametrize("name", MIXTURES)
def test_stacked_experts(name, quantized):
    """As llama.cpp's mixtures have it: gate and up in one type, down in a larger one; both of another in layer 1."""
    architecture, arch, config = MIXTURES[name]
    wide = {"gate": ("IQ2_XS", "MXFP4"), "up": ("IQ2_XS", "MXFP4"), "down": ("IQ3_S", "Q8_0")}
    path, theirs = quantized(
        architecture, EXPERTS | config, arch, lambda layer, leaf: wide.get(STACKED.get(leaf), (None, None))[layer]
    )
    check(path, theirs, VectorCodebook=4 * 2, Codebook4=4, GroupedInt=4)


def one_for_each(tensors):
    """gpt-oss: [experts, in, 2 * out] with gates and ups in turn -> matrices and biases of each expert."""
    apart = dict(tensors)
    for name in [name for name in tensors if ".experts." in name]:
        base, _, leaf = name.rpartition(".")
        stack, suffix = apart.pop(name), "bias" if leaf.endswith("_bias") else "weight"
        parts = {"down_proj": stack} if "down" in leaf else {"gate_proj": stack[..., ::2], "up_proj": stack[..., 1::2]}
        for leaf, part in parts.items():
            for index, one in enumerate(part):
                apart[f"{base}.{index}.{leaf}.{suffix}"] = (
                    one.T.contiguous() if suffix == "weight" else one.contiguous()
                )
    return apart


def as_stored(apart):
    """The way back."""
    tensors = {name: tensor for name, tensor in apart.items() if ".experts." not in name}
    for base in {name.partition(".experts.")[0] + ".experts" for name in apart if ".experts." in name}:
        for suffix, ending in (("weight", ""), ("bias", "_bias")):
            gate, up, down = (
                torch.stack([apart[f"{base}.{index}.{leaf}.{suffix}"].movedim(0, -1) for index in range(4)])
                for leaf in ("gate_proj", "up_proj", "down_proj")
            )
            tensors[f"{base}.gate_up_proj{ending}"] = torch.stack([gate, up], dim=-1).flatten(-2)
            tensors[f"{base}.down_proj{ending}"] = down.contiguous()
    return tensors


def test_gpt_oss(quantized):
    """Experts in MXFP4 as published, the rest in Q8_0: sinks, biases, windows and YaRN come from the file."""
    config = EXPERTS | {"num_local_experts": 4, "sliding_window": 8, "max_position_embeddings": 256}
    config["rope_parameters"] = {
        "rope_type": "yarn", "rope_theta": 1000.0, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 16,
    }  # fmt: skip
    path, theirs = quantized(
        "GptOssForCausalLM",
        config,
        "gpt-oss",
        lambda layer, leaf: None if leaf == "router" else "Q8_0" if leaf[0] in "qkvo" else "MXFP4",
        apart=one_for_each,
        together=as_stored,
    )
    check(path, theirs, Codebook4=2 * 4 * 2, GroupedInt=2 * 2)
