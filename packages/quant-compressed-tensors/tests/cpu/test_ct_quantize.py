"""What `modulm quantize` writes: each number the nearest of its row, as compressed-tensors itself decodes it."""

import json

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.cli import main
from modulm_quant_compressed_tensors.scheme import CompressedTensors
from modulm_testkit.oracles.weights import dequantised
from modulm_testkit.scored import scored
from modulm_testkit.steps import prompt


def nearest(weight, name):
    """The definition, in float64; of 8-bit floats by all the values there are."""
    exact = weight.double().numpy()
    largest = np.abs(exact).max(axis=1, keepdims=True)
    if name == "int8":
        return np.rint(exact * 127 / largest) * largest / 127
    values = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    values = np.sort(values[np.isfinite(values)])
    middles = (values[1:] + values[:-1]) / 2
    return values[np.searchsorted(middles, exact * 448 / largest)] * largest / 448


@pytest.fixture(scope="module", params=["int8", "fp8"])
def written(request, tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "model"
    assert main(["quantize", str(tiny_folder), str(folder), f"--format={request.param}"]) == 0
    return folder, request.param


def test_numbers_are_the_nearest(written, tiny_folder):
    folder, name = written
    checkpoint = SafetensorsCheckpoint.open(folder)
    scheme = CompressedTensors.from_checkpoint(checkpoint)
    count = 0
    for key, weight in load_file(tiny_folder / "model.safetensors").items():
        if key.endswith("_proj.weight"):
            got = dequantised(scheme.weight(checkpoint, key.removesuffix(".weight"), *weight.shape))
            want = nearest(weight, name)
            wrong = ~np.isclose(got, want, rtol=1e-6, atol=1e-7)
            assert wrong.mean() < 1e-3  # where float32 and float64 round a number in the middle to two sides
            step = np.abs(weight.double().numpy()).max(axis=1, keepdims=True) / (254 if name == "int8" else 28)
            assert (np.abs(got - weight.double().numpy()) <= step * 1.001).all()
            count += 1
        else:
            np.testing.assert_array_equal(checkpoint.tensor(key), weight.numpy())
    assert count == 7


def test_the_library_reads_it(written, capsys):
    pytest.importorskip("compressed_tensors")
    folder, name = written
    checkpoint = SafetensorsCheckpoint.open(folder)
    scheme = CompressedTensors.from_checkpoint(checkpoint)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        theirs(torch.tensor([[5]]))  # decodes its weights
    for module in ("model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj"):
        want = theirs.get_submodule(module).weight.detach().double().numpy()
        np.testing.assert_allclose(
            dequantised(scheme.weight(checkpoint, module, *want.shape)), want, rtol=1e-6, atol=1e-6
        )


def test_it_runs(written):
    folder, _ = written
    declared = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert declared["ignore"] == ["lm_head"]
    ran = scored(folder, [prompt(12, 1)], cpu_threads=1)
    assert np.isfinite(ran.logprobs[0]).all()
    assert sum(count for name, count in ran.kernels.items() if "ChannelInt8" in name or "Float8" in name) == 4
