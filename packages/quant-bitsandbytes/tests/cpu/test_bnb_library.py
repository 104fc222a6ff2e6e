"""Checkpoints made by transformers and bitsandbytes: the library's own values, log-probabilities and text.

Log-probabilities are those of transformers' model in float64 with the weights that the library dequantises.
"""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.cli import main
from modulm_quant_bitsandbytes.quantized import nf4
from modulm_quant_bitsandbytes.scheme import BitsAndBytes
from modulm_testkit.oracles.weights import dequantised, faults
from modulm_testkit.scored import (
    EXACT,
    PROMPTS,
    continued,
    continued_by_transformers,
    scored,
    scored_by_transformers,
)

library = pytest.importorskip("bitsandbytes")

BOUND = 1e-4
"""Of log-probabilities, where activations are not rounded."""
FAST_BOUND = 0.1
"""Of their root mean square, as a part of their own spread, where activations are rounded to 8 bits: random weights
make the most of every error."""
OPTIONS = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4, scales of two levels": {
        "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
    },
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "fp4 as bfloat16": {
        "load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_quant_storage": torch.bfloat16,
    },
    "int8": {"load_in_8bit": True},
}  # fmt: skip


@pytest.fixture(scope="module", params=OPTIONS)
def made(request, quantized_folder):
    """A checkpoint of each kind: (folder, layer -> what the library dequantises, float64)."""
    folder = quantized_folder(**OPTIONS[request.param])
    return folder, worth_of(load_file(folder / "model.safetensors"))


def worth_of(tensors):
    worth = {}
    for name in tensors:
        module, found, _ = name.rpartition(".weight.quant_state.")
        if found:
            layer = f"{module}.weight"
            parts = {key[len(layer) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{layer}.")}
            state = library.functional.QuantState.from_dict(parts, device="cpu")
            packed = tensors[layer].view(torch.uint8)
            worth[module] = library.functional.dequantize_4bit(packed, state).double().numpy()
        elif name.endswith(".SCB"):
            module = name.removesuffix(".SCB")
            worth[module] = (tensors[f"{module}.weight"].double() * tensors[name].double()[:, None] / 127).numpy()
    return worth


def logprobs(folder, worth):
    """transformers' own, in float64, with the layers' weights replaced."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).double().eval()
    with torch.inference_mode():
        for name, numbers in worth.items():
            model.get_submodule(name).weight.copy_(torch.from_numpy(np.ascontiguousarray(numbers)))
    return scored_by_transformers(model, PROMPTS)


def test_values_are_the_librarys(made):
    folder, worth = made
    checkpoint = SafetensorsCheckpoint.open(folder)
    scheme = BitsAndBytes.from_checkpoint(checkpoint)
    assert len(worth) == 7
    for module, wanted in worth.items():
        weight = scheme.weight(checkpoint, module, *wanted.shape)
        assert not faults(weight)
        np.testing.assert_allclose(dequantised(weight), wanted, rtol=1e-6, atol=1e-7 * np.abs(wanted).max())
    assert scheme.weight(checkpoint, "lm_head", 300, 128) is None


def test_log_probabilities(made, tiny_folder):
    folder, worth = made
    wanted = logprobs(tiny_folder, worth)
    exact, fast = (scored(folder, PROMPTS, **{**EXACT, "kernel_precision": name}) for name in ("exact", "fast"))
    for want, one, other in zip(wanted, exact.logprobs, fast.logprobs, strict=True):
        assert want.std() > 1
        np.testing.assert_allclose(one, want, atol=BOUND)
        assert np.sqrt(np.mean((other - want) ** 2)) < FAST_BOUND * want.std()
    check_kernels(exact)
    check_kernels(fast)


def check_kernels(ran):
    """All quantized layers, query, key and value as one, are served by the best kernels there are."""
    assert ran.num_served("Codebook4", "ChannelInt8") == 4, ran.kernels


def test_text_is_transformers(made):
    """Greedy, by the library's own 4-bit layers as in training, without a cache: else they multiply in bfloat16.

    Its int8 layers always round activations, so plain ones stand in for them.
    """
    folder, worth = made
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    if theirs.config.quantization_config.load_in_8bit:
        for name, numbers in worth.items():
            layer = torch.nn.Linear(numbers.shape[1], numbers.shape[0], bias=False)
            layer.weight.data = torch.from_numpy(numbers).float()
            parent, _, last = name.rpartition(".")
            setattr(theirs.get_submodule(parent), last, layer)
    wanted = continued_by_transformers(theirs, PROMPTS, use_cache=False)
    assert continued(folder, PROMPTS, **EXACT) == wanted


@pytest.mark.parametrize("shape", [(6, 128), (7, 96), (512, 320)])
def test_nf4_is_rounded_as_the_library_does(shape):
    numbers = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    packed, state = library.functional.quantize_4bit(torch.from_numpy(numbers), quant_type="nf4", blocksize=64)
    # Not by dequantize_4bit: bitsandbytes 0.50's begins a block with every row on the CPU, unlike what it quantized.
    codes = torch.stack([packed >> 4, packed & 15], dim=-1).reshape(-1).long()
    wanted = (state.code[codes] * state.absmax.repeat_interleave(64)[: len(codes)]).reshape(shape).numpy()
    np.testing.assert_allclose(dequantised(nf4(numbers, "")), wanted, rtol=1e-6, atol=1e-6)


def test_plain_checkpoints_become_nf4(tiny_folder):
    tensors = load_file(tiny_folder / "model.safetensors")
    worth = {}
    for name, numbers in tensors.items():
        if name.endswith("_proj.weight"):
            packed, state = library.functional.quantize_4bit(numbers, quant_type="nf4", blocksize=64)
            worth[name.removesuffix(".weight")] = library.functional.dequantize_4bit(packed, state).double().numpy()
    ran = scored(tiny_folder, PROMPTS, quantization="bitsandbytes", **EXACT)
    for got, want in zip(ran.logprobs, logprobs(tiny_folder, worth), strict=True):
        np.testing.assert_allclose(got, want, atol=BOUND)
    check_kernels(ran)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_modulm_quantize(tiny_folder, tmp_path, kind):
    folder = tmp_path / "out"
    assert main(["quantize", str(tiny_folder), str(folder), f"--format={kind}"]) == 0
    worth = worth_of(load_file(folder / "model.safetensors"))
    assert len(worth) == 7
    ran = scored(folder, PROMPTS, **EXACT)
    for got, want in zip(ran.logprobs, logprobs(tiny_folder, worth), strict=True):
        np.testing.assert_allclose(got, want, atol=BOUND)
