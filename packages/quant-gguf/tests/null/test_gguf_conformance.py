"""Reader and scheme keep the contracts, by the suites that plugin authors run on theirs; gguf's library is right."""

import gguf
import numpy as np
import pytest

from modulm_quant_gguf.checkpoint import GGUFCheckpoint
from modulm_quant_gguf.scheme import GGUFScheme
from modulm_testkit.checkpoint import CheckpointConformance
from modulm_testkit.quantization import QuantizationConformance
from modulm_testkit.samples import CheckpointSample, QuantizedSample

TYPES = {"ffn_up": "Q4_1", "ffn_gate": "Q8_0", "ffn_down": "Q6_K", "attn_output": "IQ4_NL", "attn_v": "F16"}
NAMES = {"ffn_up": "mlp.up_proj", "ffn_gate": "mlp.gate_proj", "ffn_down": "mlp.down_proj"}
NAMES |= {"attn_output": "self_attn.o_proj", "attn_v": "self_attn.v_proj"}


@pytest.fixture
def written(write_gguf, required):
    """A file with a tensor of each type, and what each is worth, by transformers' name of its layer."""
    rng = np.random.default_rng(0)
    tensors, worth = {}, {}
    for name, kind in TYPES.items():
        kind = gguf.GGMLQuantizationType[kind]
        numbers = rng.standard_normal((8, 256)).astype(np.float32)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        try:
            raw = gguf.quants.quantize(numbers, kind)
        except NotImplementedError:  # any bytes will do, if they stand for finite numbers
            raw = rng.integers(0, 60, (8, 256 // block * size), dtype=np.uint8)
        tensors[f"blk.0.{name}.weight"] = (raw, kind)
        worth[f"model.layers.0.{NAMES[name]}"] = gguf.quants.dequantize(raw, kind)
    return write_gguf("llama", {**required("llama"), "llama.vocab_size": 7}, tensors), worth


class TestGGUFCheckpoint(CheckpointConformance):
    @pytest.fixture
    def checkpoint(self, written):
        path, worth = written
        tensors = {f"{module}.weight": numbers for module, numbers in worth.items()}
        return CheckpointSample(reader=GGUFCheckpoint, path=path, config={"hidden_size": 32}, tensors=tensors)


class TestGGUFScheme(QuantizationConformance):
    @pytest.fixture
    def scheme(self, written):
        path, worth = written
        return QuantizedSample(scheme=GGUFScheme, checkpoint=GGUFCheckpoint.open(path), weights=worth)
