"""Experts and layers in gpt-oss's blocks through the whole engine, against transformers' own decoder of them.

The models are gpt-oss, Qwen3-MoE and Llama. Weights are rounded here by OCP's rules and stored as gpt-oss
stores them; transformers makes numbers of them again, in float64.
"""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from modulm.errors import CheckpointError
from modulm_testkit.checkpoints import SIZES, tiny_llama, tiny_mixture, tiny_model, write_safetensors, write_tokenizer
from modulm_testkit.scored import EXACT, PROMPTS, scored, scored_by_transformers

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return tiny_mixture(tmp_path_factory.mktemp("mixture"))


def in_blocks(weight):
    """Round to the nearest of e2m1 times a power of two for 32: blocks and exponents."""
    groups = weight.astype(np.float64).reshape(*weight.shape[:-1], -1, 32)
    exponents = np.floor(np.log2(np.abs(groups).max(-1))) - 2
    scaled = groups / np.exp2(exponents)[..., None]
    codes = np.abs(np.abs(scaled)[..., None] - MAGNITUDES).argmin(-1) + 8 * (scaled < 0)
    return (codes[..., ::2] + 16 * codes[..., 1::2]).astype(np.uint8), (exponents + 127).astype(np.uint8)


def decoded(blocks, scales):
    """By transformers, which hands matrices out transposed."""
    stack = [
        torch.from_numpy(part if part.ndim > 2 + is_blocks else part[None])
        for is_blocks, part in ((1, blocks), (0, scales))
    ]
    return convert_moe_packed_tensors(*stack, dtype=torch.float64).transpose(1, 2)


def stored(name, weight):
    blocks, scales = in_blocks(weight)
    return {f"{name}_blocks": blocks, f"{name}_scales": scales}, decoded(blocks, scales)


def written(source, folder, tensors, **declared):
    shutil.copytree(source, folder)
    write_safetensors(folder / "model.safetensors", tensors)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "mxfp4", **declared}})
    )
    return folder


def check(folder, theirs, count):
    ran = scored(folder, PROMPTS, **EXACT)
    for want, got in zip(scored_by_transformers(theirs, PROMPTS), ran.logprobs, strict=True):
        assert want.std() > 1
        np.testing.assert_allclose(got, want, atol=1e-4)
    assert ran.num_served("BlockFloat4") == count, ran.kernels


def read(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, experts_implementation="eager")
    return model.double().eval(), load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def experts(mixture):
    """A mixture's tensors with all experts of a layer in one stack of blocks, and transformers' model of them."""
    theirs, tensors = read(mixture)
    for layer in (0, 1):
        base = f"model.layers.{layer}.mlp.experts"
        for last in ("gate_up_proj", "down_proj"):
            parameter = getattr(theirs.get_submodule(base), last)
            blocks, worth = stored(f"{base}.{last}", parameter.detach().numpy())
            assert worth.shape == parameter.shape
            parameter.data = worth
            tensors |= blocks
    return {name: tensor for name, tensor in tensors.items() if ".experts.0" not in name and not _of_one(name)}, theirs


def _of_one(name):
    return any(f".experts.{index}." in name for index in range(4))


def test_stacked_experts(mixture, experts, tmp_path):
    tensors, theirs = experts
    names = ["model.layers.*.self_attn", "model.layers.*.mlp.gate", "model.embed_tokens", "lm_head"]
    check(written(mixture, tmp_path / "m", tensors, modules_to_not_convert=names), theirs, 2 * 4 * 2)


NOT_CONVERTED = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


def test_gpt_oss(tmp_path):
    """As OpenAI publishes it: experts in blocks whose rows of gate and up take turns, biases and all else plain."""
    folder = tmp_path / "plain"
    folder.mkdir()
    sizes = {**SIZES, "vocab_size": write_tokenizer(folder), "hidden_size": 64, "head_dim": 16, "num_local_experts": 4}
    sizes |= {"num_experts_per_tok": 2, "sliding_window": 8, "initializer_range": 0.3, "eos_token_id": 1}
    model = tiny_model(folder, "GptOssForCausalLM", sizes)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "sinks")):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    check(folder, read(folder)[0], 0)
    theirs, tensors = read(folder)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        blocks, worth = stored(name, tensors.pop(name).swapaxes(1, 2))
        module, _, last = name.rpartition(".")
        getattr(theirs.get_submodule(module), last).data = worth.transpose(1, 2)
        tensors |= blocks
    check(written(folder, tmp_path / "m", tensors, modules_to_not_convert=NOT_CONVERTED), theirs, 2 * 4 * 2)


def test_a_damaged_expert_is_refused_before_anything_is_packed(mixture, experts, tmp_path):
    name = "model.layers.1.mlp.experts.down_proj_scales"
    scales = experts[0][name].copy()
    scales[3, 5, 0] = 255
    folder = written(mixture, tmp_path / "m", experts[0] | {name: scales})
    with pytest.raises(CheckpointError, match="layers.1.mlp.experts.down_proj_scales.*NaN"):
        scored(folder, PROMPTS, **EXACT)


def test_dense_layers(tmp_path_factory, tmp_path):
    llama = tiny_llama(tmp_path_factory.mktemp("llama"), hidden_size=64, intermediate_size=96)
    theirs, tensors = read(llama)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        blocks, worth = stored(name, tensors.pop(name))
        theirs.get_submodule(name.removesuffix(".weight")).weight.data = worth[0]
        tensors |= blocks
    check(written(llama, tmp_path / "m", tensors), theirs, 8)
