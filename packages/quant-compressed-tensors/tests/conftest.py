"""Layers packed bit by bit as the formats say, and checkpoints that compressed-tensors itself compressed."""

import ml_dtypes
import numpy as np
import pytest

from modulm_testkit.checkpoints import tiny_llama
from modulm_testkit.fakes import MemoryCheckpoint

UP = "model.layers.0.mlp.up_proj"
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def words(rows, bits):
    """Pack rows of codes into words of 32 bits, by whole numbers of Python: the first code in the lowest bits."""
    packed = []
    for row in rows:
        number = sum(int(code) << (bits * place) for place, code in enumerate(row))
        count = -(-len(row) * bits // 32)
        packed.append([(number >> (32 * place)) & 0xFFFFFFFF for place in range(count)])
    return np.array(packed, np.uint32).view(np.int32)


class Stored:
    """A layer of random codes.

    Attributes:
        group: The group of `config_groups` that means it; tests change it.
        tensors: By name; tests change them.
        worth: The layer's numbers, float64.
        head: Of a layer in plain numbers.
    """

    def __init__(self, kind, shape=(6, 64), seed=0):
        self.kind, *self.words = kind.split(", ")
        self.shape, self.rng = shape, np.random.default_rng(seed)
        self.head = np.arange(32, dtype=np.float32).reshape(4, 8)
        self.weights = {"symmetric": "zero points" not in self.words}
        self.group = {"targets": ["Linear"], "weights": self.weights}
        self.declared = {"ignore": ["lm_head"]}
        self.tensors = {}
        name = next(name for name in ("int", "bytes", "fp8", "mxfp8", "nvfp4", "mxfp4") if self.kind.startswith(name))
        getattr(self, f"_{name}")()

    def checkpoint(self):
        """Return all tensors under a declaration."""
        declared = {"quant_method": "compressed-tensors", "config_groups": {"group_0": self.group}, **self.declared}
        tensors = {f"{UP}.{name}": array for name, array in self.tensors.items()}
        config = {"architectures": ["LlamaForCausalLM"], "quantization_config": declared}
        return MemoryCheckpoint(config, {**tensors, "lm_head.weight": self.head})

    def _scales(self):
        """Set strategy and scales; return the latter spread over the layer, and how they are spread."""
        rows, columns = self.shape
        if "groups" in self.words:
            self.weights |= {"strategy": "group", "group_size": 16}
            shape, spread = (rows, columns // 16), (1, 16)
        elif "blocks" in self.words:
            self.weights |= {"strategy": "block", "block_structure": [4, 24]}
            shape, spread = (2, 3), (4, 24)
        elif "rows" in self.words:
            self.weights["strategy"] = "channel"
            shape, spread = (rows, 1), (1, columns)
        else:
            self.weights["strategy"] = "tensor"
            shape, spread = (1, 1), (rows, columns)
        scales = self.rng.uniform(0.01, 0.1, shape).astype(np.float16 if "groups" in self.words else ml_dtypes.bfloat16)
        self.tensors["weight_scale"] = scales.reshape(-1) if "tensor" in self.words else scales
        return self._spread(scales, spread), shape, spread

    def _spread(self, numbers, spread):
        wide = numbers.astype(np.float64).repeat(spread[0], axis=0).repeat(spread[1], axis=1)
        return wide[: self.shape[0], : self.shape[1]]

    def _integers(self, bits):
        scales, shape, spread = self._scales()
        codes = self.rng.integers(0, 1 << bits, self.shape)
        zeros = np.full(shape, 1 << (bits - 1))
        if not self.weights["symmetric"]:
            zeros = self.rng.integers(0, 1 << bits, shape)
        if "order" in self.words:
            self.weights["actorder"] = "group"
            groups = self.rng.permutation(np.arange(self.shape[1]) // 16)
            self.tensors["weight_g_idx"] = groups.astype(np.int32)
            small = self.tensors["weight_scale"].astype(np.float64)
            self.worth = (codes - zeros[:, groups]) * small[:, groups]
        else:
            self.worth = (codes - self._spread(zeros, spread)) * scales
        return codes, zeros

    def _int(self):
        bits = int(self.kind.removeprefix("int"))
        self.group["format"] = "pack-quantized"
        self.weights |= {"num_bits": bits, "type": "int"}
        codes, zeros = self._integers(bits)
        self.tensors["weight_packed"] = words(codes, bits)
        self.tensors["weight_shape"] = np.array(self.shape, np.int64)
        if not self.weights["symmetric"]:
            self.tensors["weight_zero_point"] = np.ascontiguousarray(words(zeros.T, bits).T)

    def _bytes(self):
        self.group["format"] = "int-quantized"
        self.weights |= {"num_bits": 8, "type": "int"}
        codes, zeros = self._integers(8)
        self.tensors["weight"] = (codes - 128).astype(np.int8)
        if not self.weights["symmetric"]:
            self.tensors["weight_zero_point"] = (zeros - 128).astype(np.int8)

    def _fp8(self):
        self.group["format"] = "float-quantized"
        self.weights |= {"num_bits": 8, "type": "float"}
        scales, *_ = self._scales()
        self.tensors["weight"] = self.rng.normal(size=self.shape).astype(ml_dtypes.float8_e4m3fn)
        self.worth = self.tensors["weight"].astype(np.float64) * scales

    def _mxfp8(self):
        self._fp8()
        self.group["format"] = "mxfp8-quantized"
        self.weights |= {"strategy": "group", "group_size": 32}
        self.worth = self.tensors["weight"].astype(np.float64) * self._exponents()

    def _exponents(self):
        exponents = self.rng.integers(120, 130, (self.shape[0], self.shape[1] // 32)).astype(np.uint8)
        self.tensors["weight_scale"] = exponents
        return self._spread(2.0 ** (exponents.astype(np.float64) - 127), (1, 32))

    def _fp4(self):
        codes = self.rng.integers(0, 16, self.shape)
        pairs = codes.reshape(self.shape[0], -1, 2)
        self.tensors["weight_packed"] = (pairs[..., 0] + 16 * pairs[..., 1]).astype(np.uint8)
        self.weights |= {"num_bits": 4, "type": "float"}
        return np.array([[E2M1[code % 8] * (-1 if code > 7 else 1) for code in row] for row in codes])

    def _mxfp4(self):
        self.group["format"] = "mxfp4-pack-quantized"
        self.weights |= {"strategy": "group", "group_size": 32}
        self.worth = self._fp4() * self._exponents()

    def _nvfp4(self):
        self.group["format"] = "nvfp4-pack-quantized"
        self.weights |= {"strategy": "tensor_group", "group_size": 16}
        numbers = self._fp4()
        inner = self.rng.uniform(1, 400, (self.shape[0], self.shape[1] // 16)).astype(ml_dtypes.float8_e4m3fn)
        outer = np.array([3277.5], np.float32)
        self.tensors |= {"weight_scale": inner, "weight_global_scale": outer}
        self.worth = numbers * self._spread(inner, (1, 16)) / float(outer[0])


@pytest.fixture(scope="session")
def stored():
    """`stored(kind, shape)`: see `Stored`."""
    return Stored


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A Llama of plain numbers whose layers have whole groups of 64."""
    return tiny_llama(tmp_path_factory.mktemp("plain"), hidden_size=128, intermediate_size=192, num_hidden_layers=1)


@pytest.fixture(scope="session")
def compress(tiny_folder, tmp_path_factory):
    """Write a checkpoint: `compress(groups, ignore)`; return its folder and, by layer, what the library decodes."""
    pytest.importorskip("compressed_tensors")
    import torch
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from transformers import AutoModelForCausalLM

    def write(groups, ignore=("lm_head",), **keys):
        folder = tmp_path_factory.mktemp("compressed")
        model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
        apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=list(ignore), **keys))
        for module in model.modules():
            scheme = getattr(module, "quantization_scheme", None)
            if scheme is not None and scheme.weights is not None:
                calibrate(module, scheme.weights)
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        compressor.remove_decompression_hook(model)
        model.save_pretrained(folder)
        compressor.update_config(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((tiny_folder / name).read_bytes())
        compressor.decompress_model(model)
        worth = {
            name: module.weight.detach().float().numpy()
            for name, module in model.named_modules()
            if getattr(module, "quantization_scheme", None) is not None and hasattr(module, "weight")
        }
        return folder, worth

    return write


def calibrate(module, args):
    """Give a module scales and zero points from the smallest and largest number of each group."""
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    weight = module.weight.detach()
    rows, columns = weight.shape
    if args.strategy == "tensor":
        parts = weight.reshape(1, 1, -1)
    elif args.strategy == "channel":
        parts = weight[:, None]
    elif args.strategy == "block":
        high, wide = args.block_structure
        parts = weight.unflatten(0, (-1, high)).unflatten(2, (-1, wide)).transpose(1, 2).flatten(2)
    else:
        parts = weight.unflatten(1, (-1, args.group_size))
    smallest, largest = parts.amin(-1), parts.amax(-1)
    outer = None
    if hasattr(module, "weight_global_scale"):
        outer = generate_gparam(weight.amin(), weight.amax())
        module.weight_global_scale.data.copy_(outer)
    scale, zero_point = calculate_qparams(smallest, largest, args, global_scale=outer)
    module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero_point.reshape(module.weight_zero_point.shape))
