"""Layers that nvidia-modelopt 0.47 exported (`files/make.py`) are worth what it says itself, by every algorithm.

Its own decoders speak for 4 bits and microscaling; for FP8 its simulation, whose results are bfloat16.
"""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.interfaces.support import Accepted
from modulm_quant_modelopt.scheme import ModelOpt
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.oracles.weights import dequantised, faults

FILE = Path(__file__).parents[1] / "files" / "modelopt-0.47.safetensors"
RAW = FILE.read_bytes()
DECLARED = json.loads(json.loads(RAW[8 : 8 + struct.unpack("<Q", RAW[:8])[0]])["__metadata__"]["declared"])


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modelopt")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(RAW)
    stored = SafetensorsCheckpoint.open(folder)
    return {name: stored.tensor(name) for name in stored.tensor_names()}


@pytest.mark.parametrize("where", ["config.json", "hf_quant_config.json"])
@pytest.mark.parametrize("algorithm", DECLARED)
def test_worth_what_the_library_says(tensors, algorithm, where):
    mine = {name.partition(":")[2]: array for name, array in tensors.items() if name.startswith(f"{algorithm}:")}
    worth = {name.removesuffix(".worth"): mine.pop(name) for name in list(mine) if name.endswith(".worth")}
    declared = {"quant_method": "modelopt", **DECLARED[algorithm][where]}
    checkpoint = MemoryCheckpoint({"quantization_config": declared}, mine)
    assert isinstance(ModelOpt.matches(checkpoint), Accepted)
    scheme = ModelOpt.from_checkpoint(checkpoint)
    for module, wanted in worth.items():
        weight = scheme.weight(checkpoint, module, *wanted.shape)
        assert not faults(weight)
        bound = 2.0**-8 if wanted.dtype == ml_dtypes.bfloat16 else 2.0**-22
        np.testing.assert_allclose(dequantised(weight), wanted.astype(np.float64), rtol=bound, atol=1e-9)
        assert wanted.astype(np.float64).std() > 0.1
