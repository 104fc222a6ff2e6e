"""Checkpoints of bitsandbytes: in memory, number by number as the format says, and made by the library itself."""

import json
import math

import numpy as np
import pytest

from modulm_testkit.checkpoints import tiny_llama
from modulm_testkit.fakes import MemoryCheckpoint

UP, HEAD = "model.layers.0.mlp.up_proj", "lm_head"


class FourBit:
    """A layer of random codes and scales; `tensors` by name, `worth` in float64, computed one number at a time."""

    def __init__(self, shape, *, kind="nf4", block=64, nested=0, storage=np.uint8, seed=0):
        rng = np.random.default_rng(seed)
        count = math.prod(shape)
        num_blocks = -(-count // block)
        packed = rng.integers(0, 256, (count + 1) // 2, dtype=np.uint8)
        values = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
        self.state = {"quant_type": kind, "blocksize": block, "dtype": "float16", "shape": list(shape)}
        parts = {"quant_map": values}
        if nested:
            levels = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
            codes = rng.integers(0, 256, num_blocks, dtype=np.uint8)
            outer = rng.uniform(0.01, 0.1, -(-num_blocks // nested)).astype(np.float32)
            self.state |= {"nested_blocksize": nested, "nested_dtype": "float32", "nested_offset": 0.75}
            parts |= {"absmax": codes, "nested_absmax": outer, "nested_quant_map": levels}
            scales = [float(levels[codes[i]]) * float(outer[i // nested]) + 0.75 for i in range(num_blocks)]
        else:
            parts["absmax"] = rng.uniform(0.1, 2, num_blocks).astype(np.float32)
            scales = parts["absmax"].tolist()
        self.tensors = {f"{UP}.weight": packed.view(storage).reshape(-1, 1)}
        self.tensors |= {f"{UP}.weight.{name}": array for name, array in parts.items()}
        self.name = f"{UP}.weight.quant_state.bitsandbytes__{kind}"
        worth = [
            float(values[packed[i // 2] & 15 if i % 2 else packed[i // 2] >> 4]) * scales[i // block]
            for i in range(count)
        ]
        self.worth = np.array(worth).reshape(shape)

    def checkpoint(self, **changes):
        """Return all tensors; `changes` go into the configuration."""
        state = np.frombuffer(json.dumps(self.state).encode(), np.uint8)
        return memory({self.name: state, **self.tensors}, **{"load_in_4bit": True, **changes})


class EightBit:
    """A layer of random bytes."""

    def __init__(self, shape):
        rng = np.random.default_rng(1)
        codes = rng.integers(-127, 128, shape, dtype=np.int8)
        scales = rng.uniform(0.1, 2, shape[0]).astype(np.float32)
        self.tensors = {f"{UP}.weight": codes, f"{UP}.SCB": scales, f"{UP}.weight_format": np.array(0, np.uint8)}
        self.worth = codes.astype(np.float64) * scales.astype(np.float64)[:, None] / 127

    def checkpoint(self, **changes):
        """See `FourBit`."""
        return memory(self.tensors, **{"load_in_8bit": True, **changes})


def memory(tensors, **declared):
    config = {"architectures": ["LlamaForCausalLM"]}
    if declared:
        config["quantization_config"] = {"quant_method": "bitsandbytes", **declared}
    head = {f"{HEAD}.weight": np.arange(32, dtype=np.float32).reshape(4, 8)}
    return MemoryCheckpoint(config, {**tensors, **head})


@pytest.fixture(scope="session")
def four_bit():
    """`four_bit(shape, **options)`: see `FourBit`."""
    return FourBit


@pytest.fixture(scope="session")
def eight_bit():
    """`eight_bit(shape)`: see `EightBit`."""
    return EightBit


@pytest.fixture(scope="session")
def plain():
    """`plain(tensors)`: a checkpoint that declares nothing."""
    return memory


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A Llama of plain numbers; blocks of 64 lie within its rows."""
    return tiny_llama(tmp_path_factory.mktemp("plain"), hidden_size=128, intermediate_size=192, num_hidden_layers=1)


@pytest.fixture(scope="session")
def quantized_folder(tiny_folder, tmp_path_factory):
    """`quantized_folder(**options)`: what transformers and bitsandbytes make of it."""
    pytest.importorskip("bitsandbytes")
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    def make(**options):
        folder = tmp_path_factory.mktemp("bitsandbytes")
        config = BitsAndBytesConfig(**options)
        model = AutoModelForCausalLM.from_pretrained(tiny_folder, quantization_config=config, dtype=torch.float32)
        model.save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((tiny_folder / name).read_bytes())
        return folder

    return make
