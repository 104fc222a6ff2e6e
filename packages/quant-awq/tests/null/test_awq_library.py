"""Layers that GPTQModel wrote are worth what its own dequantisation says; `made_by_gptqmodel.py` made the files."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from modulm_quant_awq.scheme import AWQScheme
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.oracles.weights import dequantised, faults

FILES = sorted((Path(__file__).parent.parent / "fixtures").glob("*.safetensors"))
SHAPES = {"k_proj": (64, 64), "down_proj": (64, 128)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_layers_of_the_library(file):
    with safe_open(file, "numpy") as stream:
        config = json.loads(stream.metadata()["config"])
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    expected = {name.removeprefix("expected."): tensors.pop(name) for name in list(tensors) if name.startswith("exp")}
    checkpoint = MemoryCheckpoint(config, tensors)
    assert AWQScheme.matches(checkpoint)
    scheme = AWQScheme.from_checkpoint(checkpoint)
    assert len(expected) == 2
    for module, matrix in expected.items():
        shape = SHAPES[module.rpartition(".")[2]]
        assert scheme.rule(checkpoint, module, *shape)
        weight = scheme.weight(checkpoint, module, *shape)
        assert not faults(weight)
        np.testing.assert_allclose(dequantised(weight)[: len(matrix)], matrix, rtol=1e-6, atol=1e-7)
