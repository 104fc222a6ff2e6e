"""A tiny Llama, quantized here as OCP's and ModelOpt's formats are specified, through the whole engine.

The oracle is transformers' model in float64 with the numbers that the codes and scales stand for. ModelOpt's own files
are tried in `null/test_modelopt_library.py`.
"""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from modulm.errors import CheckpointError
from modulm_testkit.checkpoints import tiny_llama, write_safetensors
from modulm_testkit.scored import EXACT, PROMPTS, scored, scored_by_transformers

E4M3 = ml_dtypes.float8_e4m3fn
MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
KV = {"k_proj.k_scale": np.float32(0.02), "v_proj.v_scale": np.float32(0.03)}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("llama"), hidden_size=64, intermediate_size=96)


def e4m3(numbers):
    return np.clip(numbers, -448, 448).astype(np.float32).astype(E4M3)


def e2m1(numbers):
    """Return packed codes of the nearest, and what they stand for."""
    nearest = np.abs(np.abs(numbers)[..., None] - MAGNITUDES).argmin(-1)
    codes = nearest + 8 * (numbers < 0)
    return (codes[:, ::2] + 16 * codes[:, 1::2]).astype(np.uint8), np.sign(numbers) * MAGNITUDES[nearest]


def largest(weight, group):
    return np.abs(weight).reshape(len(weight), -1, group).max(-1)


def quantized(weight, algorithm, most=None):
    """Return a layer's tensors by last name, and what they are worth, float64; `most` is the largest that counts."""
    if algorithm == "FP8":
        scale = np.float32(np.abs(weight).max() / 448)
        data = e4m3(weight / scale)
        return {"weight": data, "weight_scale": np.array(scale), "input_scale": np.array(scale)}, data.astype(
            float
        ) * scale
    if algorithm == "NVFP4":
        tensor = np.float32((most or np.abs(weight).max()) / 448 / 6)
        scales = e4m3(largest(weight, 16) / 6 / tensor)
        factors = scales.astype(float).repeat(16, axis=1) * float(tensor)
        codes, values = e2m1(weight / factors)
        return {"weight": codes, "weight_scale": scales, "weight_scale_2": np.array(tensor)}, values * factors
    top = 8 if algorithm == "MXFP8" else 2  # exponent of the largest power of two that e4m3 and e2m1 have
    exponents = np.floor(np.log2(largest(weight, 32))) - top
    factors = np.exp2(exponents).repeat(32, axis=1)
    data, values = e2m1(weight / factors) if algorithm == "MXFP4" else (e4m3(weight / factors), None)
    values = data.astype(float) if values is None else values
    return {"weight": data, "weight_scale": (exponents + 127).astype(np.uint8)}, values * factors


def written(llama, folder, algorithm_of, declared, more=(), together=()):
    """Write a checkpoint; return transformers' model of what it is worth. Last names `together` share NVFP4's scale."""
    shutil.copytree(llama, folder)
    theirs = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).double().eval()
    plain = load_file(llama / "model.safetensors")
    tensors = dict(plain)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        module = name.removesuffix(".weight")
        algorithm = algorithm_of(module)
        if algorithm:
            layer, worth = quantized(plain[name].astype(float), algorithm, most(name, plain, together))
            del tensors[name]
            tensors |= {f"{module}.{last}": array for last, array in layer.items()}
            theirs.get_submodule(module).weight.data = torch.from_numpy(worth)
    for last, number in dict(more).items():
        tensors |= {f"model.layers.{layer}.self_attn.{last}": np.array(number) for layer in (0, 1)}
    write_safetensors(folder / "model.safetensors", tensors)
    config = json.loads((llama / "config.json").read_text())
    if declared is not None:
        config["quantization_config"] = {"quant_method": "modelopt", "ignore": ["lm_head"], **declared}
    (folder / "config.json").write_text(json.dumps(config))
    return theirs


def most(name, plain, together):
    """Return the largest number of all weights that share a scale with this one."""
    parent, last = name.removesuffix(".weight").rsplit(".", 1)
    group = next((group for group in together if last in group), [last])
    return max(np.abs(plain[f"{parent}.{one}.weight"].astype(float)).max() for one in group)


def check(folder, theirs, kinds, *, bound, **options):
    ran = scored(folder, PROMPTS, **{**EXACT, **options})
    for want, got in zip(scored_by_transformers(theirs, PROMPTS), ran.logprobs, strict=True):
        assert want.std() > 1
        error = (
            np.sqrt(((got - want) ** 2).mean()) if options["kernel_precision"] == "fast" else np.abs(got - want).max()
        )
        assert error <= bound
    for kind, count in kinds.items():
        assert ran.num_served(kind) == count, ran.kernels
    return ran


@pytest.mark.parametrize(
    ("algorithm", "kinds"),
    [
        ("FP8", {"Float8": 8}),
        ("MXFP8", {"Float8": 8}),
        ("MXFP4", {"BlockFloat4": 8}),
        ("NVFP4", {"Codebook4": 14}),  # each part of a fused layer has a codebook of its own
    ],
)
def test_by_one_algorithm(llama, tmp_path, algorithm, kinds):
    theirs = written(llama, tmp_path / "m", lambda module: algorithm, {"quant_algo": algorithm}, KV)
    ran = check(tmp_path / "m", theirs, kinds, bound=1e-4, kernel_precision="exact")
    described = ran.explained["worker"]["quantization"]
    assert described["format"] == "modelopt" and described["layers"] == {algorithm: 14}
    assert described["KV scales"].startswith("of 2 layers: for a KV cache") and ("input scales" in described) == (
        algorithm == "FP8"
    )


def test_the_usual_precision_is_near(llama, tmp_path):
    theirs = written(llama, tmp_path / "m", lambda module: "NVFP4", {"quant_algo": "NVFP4"})
    check(tmp_path / "m", theirs, {"Codebook4": 14}, bound=0.15, kernel_precision="fast", quantization="modelopt_fp4")


def test_each_layer_by_its_own(llama, tmp_path):
    def algorithm_of(module):
        return "FP8" if "self_attn" in module else None if module.endswith("0.mlp.down_proj") else "NVFP4"

    names = [name.removesuffix(".weight") for name in load_file(llama / "model.safetensors") if "_proj" in name]
    layers = {name: {"quant_algo": algorithm_of(name)} for name in names if algorithm_of(name)}
    declared = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    theirs = written(llama, tmp_path / "m", algorithm_of, declared)
    check(tmp_path / "m", theirs, {"Float8": 4, "Codebook4": 5}, bound=1e-4, kernel_precision="exact")


def test_declared_in_a_file_of_its_own(llama, tmp_path):
    theirs = written(llama, tmp_path / "m", lambda module: "MXFP8", None)
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "MXFP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "m" / "hf_quant_config.json").write_text(json.dumps(said))
    check(tmp_path / "m", theirs, {"Float8": 8}, bound=1e-4, kernel_precision="exact")


def test_plain_checkpoints_become_nvfp4_as_they_load(llama, tmp_path):
    """The oracle is what this file's own rounding gives; what is one matrix has one scale, as ModelOpt exports it."""
    together = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")]
    theirs = written(llama, tmp_path / "m", lambda module: "NVFP4", {"quant_algo": "NVFP4"}, together=together)
    check(llama, theirs, {"Codebook4": 8}, bound=1e-4, kernel_precision="exact", quantization="nvfp4_per_token")


def test_unlike_parts_of_a_fused_layer_are_refused(llama, tmp_path):
    written(llama, tmp_path / "m", lambda module: None if "1.self_attn.v" in module else "FP8", {"quant_algo": "FP8"})
    with pytest.raises(CheckpointError, match="v_proj: not quantized"):
        scored(tmp_path / "m", PROMPTS, **EXACT)
