"""What transformers' own operation quantizes gives the log-probabilities of transformers' own reading of it.

On the CPU transformers multiplies the scales into the weights, here in float64, and leaves activations as they are.
"""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.finegrained_fp8 import Fp8Quantize

from modulm.errors import CheckpointError
from modulm_testkit.scored import EXACT, PROMPTS, scored, scored_by_transformers

BOUND = 1e-4


def written(source, folder, change, **declared):
    """Copy a model's folder; `change(name, tensor)` says what a projection becomes."""
    shutil.copytree(source, folder)
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        tensors |= change(name, tensor) if name.endswith("_proj.weight") else {name: tensor}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"activation_scheme": "dynamic", **declared}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def by_transformers(block, scale_fmt="float"):
    settings = SimpleNamespace(weight_block_size=block, scale_fmt=scale_fmt)
    return Fp8Quantize(SimpleNamespace(quantization_config=settings))._quantize_one


def read_by_transformers(folder):
    experts = {"experts_implementation": "eager"}  # the others have no float64
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **experts).eval()


def check(folder, theirs, layers, **options):
    """The engine's log-probabilities are `theirs`; so many weights are of 8 bits, all served by the best kernels."""
    ran = scored(folder, PROMPTS, **EXACT, **options)
    for got, want in zip(ran.logprobs, scored_by_transformers(theirs, PROMPTS), strict=True):
        assert want.std() > 1
        np.testing.assert_allclose(got, want, atol=BOUND)
    assert ran.num_served("Float8") == layers, ran.kernels


@pytest.mark.parametrize(("block", "scale_fmt"), [([32, 32], "float"), ([32, 32], "ue8m0"), ([8, 32], "float")])
def test_blocks(llama, tmp_path, block, scale_fmt):
    declared = {"quant_method": "fp8", "weight_block_size": block, "scale_fmt": scale_fmt}
    change = by_transformers(block, scale_fmt)
    folder = written(llama, tmp_path / "m", change, modules_to_not_convert=["lm_head"], **declared)
    check(folder, read_by_transformers(folder), 8)


def test_one_scale_for_each_weight(llama, tmp_path):
    """Query, key and value have scales of their own though they are one matrix for the kernel."""
    change = by_transformers(None)
    declared = {"quant_method": "fp8", "weight_block_size": None}
    folder = written(llama, tmp_path / "m", change, **declared)
    check(folder, read_by_transformers(folder), 8)


def test_experts(mixture, tmp_path):
    change = by_transformers([32, 32])
    declared = {"quant_method": "fp8", "weight_block_size": [32, 32], "modules_to_not_convert": ["lm_head", "mlp.gate"]}
    folder = written(mixture, tmp_path / "m", change, **declared)
    check(folder, read_by_transformers(folder), 2 * (2 + 4 * 2))


@pytest.mark.parametrize("name", ["fp8", "fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8"])
def test_plain_checkpoints_are_quantized_as_they_load(llama, name):
    """The oracle rounds with torch's own float8, in transformers' model."""
    theirs = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    for module, layer in theirs.named_modules():
        if module.endswith("_proj"):
            weight = layer.weight.data
            largest = weight.abs().amax(dim=1, keepdim=True) if name == "fp8_per_channel" else weight.abs().max()
            scale = largest / 448
            if name == "mxfp8":
                groups = weight.abs().unflatten(1, (-1, 32)).amax(-1)
                scale = torch.exp2(groups.log2().floor() - 8).repeat_interleave(32, 1)
                weight = weight.clamp(-448 * scale, 448 * scale)
            layer.weight.data = (weight / scale).to(torch.float8_e4m3fn).float() * scale
    check(llama, theirs, 8, quantization=name)


def test_mixed_parts_of_a_fused_layer_are_refused(llama, tmp_path):
    quantize = by_transformers(None)
    keep = "layers.1.self_attn.k_proj"
    declared = {"quant_method": "fp8", "weight_block_size": None, "modules_to_not_convert": [keep]}
    folder = written(llama, tmp_path / "m", lambda n, t: {n: t} if keep in n else quantize(n, t), **declared)
    with pytest.raises(CheckpointError, match="k_proj"):
        scored(folder, PROMPTS, **EXACT)
