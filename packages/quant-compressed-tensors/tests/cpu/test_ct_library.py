"""Checkpoints that compressed-tensors compressed: the library's values, log-probabilities, text; the best kernels."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from modulm import LLM
from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.errors import CheckpointError
from modulm_quant_compressed_tensors.scheme import CompressedTensors
from modulm_testkit.oracles.weights import dequantised, faults
from modulm_testkit.scored import (
    EXACT,
    PROMPTS,
    continued,
    continued_by_transformers,
    scored,
    scored_by_transformers,
)

library = pytest.importorskip("compressed_tensors")

BOUND = 1e-4
"""Of log-probabilities, where activations are not rounded."""
FAST_BOUND = 0.1
"""Of their root mean square, as a part of their own spread, where activations are rounded to 8 bits."""


def group(kind="int", inputs=None, form=None, targets=("Linear",), **weights):
    one = {"targets": list(targets), "weights": {"type": kind, **weights}}
    if inputs is not None:
        one["input_activations"] = {"num_bits": 8, "type": kind, **inputs}
    return {"group_0": one | ({"format": form} if form else {})}


TOKENS = {"dynamic": True, "strategy": "token"}
GROUPS = {
    "W4A16": group(num_bits=4, strategy="group", group_size=64),
    "W4A16, zero points": group(num_bits=4, strategy="group", group_size=32, symmetric=False),
    "W4A16 by row": group(num_bits=4, strategy="channel"),
    "W3A16": group(num_bits=3, strategy="group", group_size=64, symmetric=False),
    "W6A16": group(num_bits=6, strategy="channel"),
    "W8A16": group(num_bits=8, strategy="group", group_size=32),
    "W8A8": group(num_bits=8, strategy="channel", inputs=TOKENS, form="int-quantized"),
    "W8A8 static": group(num_bits=8, strategy="tensor", inputs={"strategy": "tensor"}, form="int-quantized"),
    "W8A8, zero points": group(num_bits=8, strategy="channel", symmetric=False, form="int-quantized"),
    "FP8": group("float", num_bits=8, strategy="tensor", inputs={"strategy": "tensor"}),
    "FP8 by row": group("float", num_bits=8, strategy="channel", inputs=TOKENS),
    "FP8 by block": group("float", num_bits=8, strategy="block", block_structure=[32, 64]),
    "naive": group("float", num_bits=8, strategy="channel", form="naive-quantized"),
    "NVFP4": {"NVFP4": ["Linear"]},
    "MXFP4": {"MXFP4A16": ["Linear"]},
    "MXFP8": {"MXFP8A16": ["Linear"]},
}
KERNELS = {"NVFP4": "Codebook4", "MXFP4": "BlockFloat4", "MXFP8": "Float8", "naive": "Float8"}
KERNELS |= {name: "Float8" for name in GROUPS if name.startswith("FP8")}
KERNELS |= {"W8A8": "ChannelInt8", "W8A8 static": "ChannelInt8"}


@pytest.fixture(scope="module", params=GROUPS)
def made(request, compress):
    """A checkpoint of each kind: (its name, folder, layer -> what it is worth)."""
    folder, worth = compress(GROUPS[request.param])
    if request.param == "NVFP4":  # the library decodes it in bfloat16
        worth = nvfp4(SafetensorsCheckpoint.open(folder), worth)
    return request.param, folder, worth


def nvfp4(checkpoint, modules):
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    worth = {}
    for name in modules:
        packed, scales, outer = (
            checkpoint.tensor(f"{name}.weight_{part}") for part in ("packed", "scale", "global_scale")
        )
        codes = np.stack([packed % 16, packed // 16], axis=-1).reshape(len(packed), -1)
        worth[name] = values[codes] * scales.astype(np.float64).repeat(16, axis=1) / outer.astype(np.float64)
    return worth


def plain_model(folder, worth):
    """transformers' model in float64, with the layers' weights replaced."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).double().eval()
    with torch.inference_mode():
        for name, numbers in worth.items():
            model.get_submodule(name).weight.copy_(torch.from_numpy(np.array(numbers)))
    return model


def check_kernels(ran, kind, count=4):
    """All quantized layers, parts of one as one or side by side, are served by the best kernels there are."""
    found = ran.num_served(kind)
    assert found >= count, ran.kernels
    assert sum(ran.kernels.values()) == found + 2, ran.kernels


def test_values_are_the_librarys(made):
    name, folder, worth = made
    checkpoint = SafetensorsCheckpoint.open(folder)
    scheme = CompressedTensors.from_checkpoint(checkpoint)
    assert len(worth) == 7
    for module, wanted in worth.items():
        weight = scheme.weight(checkpoint, module, *wanted.shape)
        assert not faults(weight) and type(weight).__name__ == KERNELS.get(name, "GroupedInt")
        np.testing.assert_allclose(dequantised(weight), wanted, rtol=1e-6, atol=2e-7 * np.abs(wanted).max())


def test_log_probabilities(made, tiny_folder):
    name, folder, worth = made
    wanted = scored_by_transformers(plain_model(tiny_folder, worth), PROMPTS)
    exact, fast = (scored(folder, PROMPTS, **{**EXACT, "kernel_precision": how}) for how in ("exact", "fast"))
    for want, one, other in zip(wanted, exact.logprobs, fast.logprobs, strict=True):
        assert want.std() > 1
        np.testing.assert_allclose(one, want, atol=BOUND)
        assert np.sqrt(np.mean((other - want) ** 2)) < FAST_BOUND * want.std()
    check_kernels(exact, KERNELS.get(name, "GroupedInt"))
    check_kernels(fast, KERNELS.get(name, "GroupedInt"))


@pytest.mark.parametrize("name", ["W4A16", "W4A16 by row", "W6A16", "W8A16"])
def test_text_is_transformers(compress, name):
    """Greedy, as transformers runs the checkpoint with compressed-tensors: weights decoded, activations in float32.

    Packed zero points it refuses to load, in versions 5.24 and 0.20.
    """
    folder, _ = compress(GROUPS[name])
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert continued(folder, PROMPTS, **EXACT) == continued_by_transformers(theirs, PROMPTS)


def test_rules_by_layer(compress, tiny_folder):
    """Formats, bits and layers of their own, an embedding and the output layer too."""
    mixed = {
        "attention": group(num_bits=4, strategy="group", group_size=32, targets=["re:.*self_attn.*"])["group_0"],
        "down": group("float", num_bits=8, strategy="channel", targets=["re:.*down_proj"])["group_0"],
        "ends": group(num_bits=8, strategy="channel", targets=["lm_head", "Embedding"])["group_0"],
    }
    folder, worth = compress(mixed, ignore=["re:.*o_proj"])
    assert len(worth) == 6
    ran = scored(folder, PROMPTS, **EXACT)
    wanted = scored_by_transformers(plain_model(tiny_folder, worth), PROMPTS)
    for got, want in zip(ran.logprobs, wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=BOUND)
    kinds = sorted(name.split(" (")[0].partition(": ")[2] for name in ran.kernels)
    assert kinds == [
        "embedding ChannelInt8",
        "linear ChannelInt8",
        "linear Dense",
        "linear Float8",
        "linear GroupedInt",
    ]


def test_unlike_rules_for_layers_that_a_model_fuses(compress):
    mixed = {
        "some": group(num_bits=4, strategy="channel", targets=["re:.*[qk]_proj"])["group_0"],
        "other": group(num_bits=8, strategy="channel", targets=["re:.*v_proj"])["group_0"],
    }
    folder, _ = compress(mixed)
    with pytest.raises(CheckpointError, match=r"unlike rules.*q_proj: .*int4.*v_proj: .*int8"):
        LLM(str(folder), num_kv_blocks=64)


def test_scales_of_the_cache(compress, tiny_folder):
    """By the library's names; they change nothing while the cache is of other numbers."""
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
    folder, worth = compress(GROUPS["FP8 by row"], kv_cache_scheme=scheme)
    tensors = load_file(folder / "model.safetensors")  # LLM Compressor calibrates what the library alone leaves out
    names = (library.quantization.KVCacheScaleType.KEY, library.quantization.KVCacheScaleType.VALUE)
    tensors |= {f"model.layers.0.self_attn.{name.value}": torch.tensor([0.5]) for name in names}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ran = scored(folder, PROMPTS, **EXACT)
    wanted = scored_by_transformers(plain_model(tiny_folder, worth), PROMPTS)
    for got, want in zip(ran.logprobs, wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=BOUND)
    assert ran.explained["worker"]["quantization"]["KV scales"].startswith("in 2 tensors")
    found = scored(folder, PROMPTS, **{**EXACT, "kv_cache_dtype": "fp8"}).explained["worker"]
    assert found["kv_cache_dtype"] == "fp8_e4m3" and found["kv_scales"].startswith("of 1 layers from the checkpoint")
