"""Weights of GGUF's types take the memory of their file in `kernels-cpu`, and are gguf's dequantisation bit for bit."""

import gguf
import numpy as np
import pytest
import torch

from modulm_kernels_cpu.provider import CPUKernels
from modulm_quant_gguf.checkpoint import GGUFCheckpoint
from modulm_quant_gguf.scheme import LAYOUTS, GGUFScheme

ROWS, COLUMNS = 64, 1024
LARGER = {"TQ1_0": 1.23, "IQ1_S": 2.17, "IQ1_M": 2.1, "IQ2_XXS": 1.65, "IQ2_XS": 1.6, "IQ2_S": 1.45, "IQ3_XXS": 1.45,
          "IQ3_S": 1.3}  # fmt: skip
"""Types that do not, unless they are to be small, and how much more they take."""
SMALL = [name for name in LARGER if name != "TQ1_0"]


def raw_rows(name):
    """Random blocks with finite values."""
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(int(kind)).integers(0, 256, (40 * ROWS, COLUMNS // block * size), np.uint8)
    if name == "MXFP4":  # exponents near those of real weights
        raw.reshape(-1, size)[:, 0] = raw.reshape(-1, size)[:, 0] & 15 | 112
    with np.errstate(all="ignore"):
        finite = np.isfinite(gguf.quants.dequantize(raw, kind)).all(axis=1)
    assert finite.sum() >= ROWS
    return raw[finite][:ROWS], kind


@pytest.mark.parametrize(
    ("name", "memory"), [*((name, "fast") for name in LAYOUTS), *((name, "small") for name in SMALL)]
)
def test_weights_take_the_memory_of_their_file(name, memory, tmp_path, monkeypatch):
    monkeypatch.setenv("MODULM_KERNEL_MEMORY", memory)
    raw, kind = raw_rows(name)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("output.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = GGUFCheckpoint.open(tmp_path / "model.gguf")
    weight = GGUFScheme.from_checkpoint(checkpoint).weight(checkpoint, "lm_head", ROWS, COLUMNS)
    kernels = CPUKernels()
    assert kernels.supports("linear", weight, "cpu")
    packed = kernels.pack(weight, "cpu", "float32")
    assert packed.size_bytes <= (LARGER.get(name, 1.05) if memory == "fast" else 1.05) * raw.nbytes
    expected = gguf.quants.dequantize(raw, kind)
    np.testing.assert_array_equal(packed.rows(torch.arange(ROWS), torch.float32).numpy(), expected)
    x = np.random.default_rng(0).standard_normal((5, COLUMNS)).astype(np.float32)
    kernels.configure(precision="exact")
    got = kernels.pack(weight, "cpu", "float32").linear(torch.from_numpy(x)).numpy()
    size = np.abs(x).astype(np.float64) @ np.abs(expected).astype(np.float64).T
    assert (np.abs(got - x.astype(np.float64) @ expected.astype(np.float64).T) <= 3e-5 * size + 1e-30).all()
