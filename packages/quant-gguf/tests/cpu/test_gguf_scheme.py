"""Weights of every type equal gguf's dequantisation bit for bit; also for embeddings, and for a whole real file."""

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16

from modulm.errors import CheckpointError
from modulm.interfaces.quantization import Codebook4, Dense, Encoded, GroupedInt, VectorCodebook
from modulm_quant_gguf.checkpoint import GGUFCheckpoint
from modulm_quant_gguf.ggml_types import KNOWN
from modulm_quant_gguf.scheme import LAYOUTS, GGUFScheme
from modulm_quant_gguf.values import DECODABLE

ROWS, COLUMNS = 12, 512
CODEBOOKS = ("MXFP4", "NVFP4")
FLOATS = ("F32", "F16", "BF16")


def values(weight):
    """A weight's numbers as float32, computed as `interfaces/quantization.py` says."""
    if isinstance(weight, Dense):
        return weight.data.astype(np.float32)
    if isinstance(weight, Encoded):
        return weight.decode(weight.data)
    codes = weight.codes
    if isinstance(weight, VectorCodebook):
        numbers = weight.codebook[codes].reshape(len(codes), -1)
        signs = np.unpackbits(weight.signs, axis=1, bitorder="little") if weight.signs.size else np.zeros(1, np.uint8)
        return grouped(weight.scales, weight) * np.where(signs, -numbers, numbers)
    if isinstance(weight, Codebook4) or weight.bits <= 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    scales = grouped(weight.scales, weight)
    if isinstance(weight, Codebook4):
        return scales * weight.codebook[codes]
    return scales * codes.astype(np.float32) + grouped(weight.minimums, weight)


def grouped(numbers, weight):
    return numbers.astype(np.float32).repeat(weight.group_size, axis=1)


def random_rows(name):
    """Raw rows of a type: quantised normal numbers where gguf can do it, else random blocks with finite values."""
    kind = gguf.GGMLQuantizationType[name]
    rng = np.random.default_rng(int(kind))
    try:
        return gguf.quants.quantize(rng.standard_normal((ROWS, COLUMNS)).astype(np.float32), kind), kind
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (20 * ROWS, COLUMNS // block * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        finite = np.isfinite(gguf.quants.dequantize(raw, kind)).all(axis=1)
    return raw[finite][:ROWS], kind


def expected_kind(name):
    if name in FLOATS:
        return Dense
    if name in CODEBOOKS or name.startswith("IQ4"):
        return Codebook4
    return VectorCodebook if name.startswith("IQ") else GroupedInt


@pytest.mark.parametrize("name", [name for name in DECODABLE if name != "F64"])
def test_every_type_as_linear_and_as_embedding(name, write_gguf, required):
    raw, kind = random_rows(name)
    tensors = {"blk.0.ffn_up.weight": (raw, kind), "token_embd.weight": (raw, kind)}
    checkpoint = GGUFCheckpoint.open(write_gguf("llama", required("llama"), tensors))
    scheme = GGUFScheme.from_checkpoint(checkpoint)
    expected = gguf.quants.dequantize(raw, kind)
    for module in ("model.layers.0.mlp.up_proj", "model.embed_tokens"):
        weight = scheme.weight(checkpoint, module, ROWS, COLUMNS)
        assert type(weight) is expected_kind(name)
        assert (weight.out_features, weight.in_features) == (ROWS, COLUMNS)
        np.testing.assert_array_equal(values(weight), expected)
        np.testing.assert_array_equal(checkpoint.tensor(f"{module}.weight").astype(np.float32), expected)
    assert scheme.describe() == {"types": {name: 2}}


def test_a_type_only_gguf_knows_is_decoded_by_it(monkeypatch, write_gguf, required):
    monkeypatch.delitem(LAYOUTS, "IQ3_S")
    raw, kind = random_rows("IQ3_S")
    checkpoint = GGUFCheckpoint.open(write_gguf("llama", required("llama"), {"output.weight": (raw, kind)}))
    weight = GGUFScheme.from_checkpoint(checkpoint).weight(checkpoint, "lm_head", ROWS, COLUMNS)
    assert isinstance(weight, Encoded)
    np.testing.assert_array_equal(weight.decode(weight.data[3:5]), gguf.quants.dequantize(raw, kind)[3:5])


def test_float64_becomes_float32(write_gguf, required):
    numbers = np.random.default_rng(0).standard_normal((4, 8))
    checkpoint = GGUFCheckpoint.open(write_gguf("llama", required("llama"), {"output.weight": numbers}))
    weight = GGUFScheme.from_checkpoint(checkpoint).weight(checkpoint, "lm_head", 4, 8)
    np.testing.assert_array_equal(weight.data, numbers.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16])
def test_floats_are_views_on_the_file(dtype, write_gguf, required):
    ones = np.ones((4, 8), dtype)
    bits = (ones.view(np.uint8), gguf.GGMLQuantizationType.BF16) if dtype is bfloat16 else ones
    checkpoint = GGUFCheckpoint.open(write_gguf("llama", required("llama"), {"output.weight": bits}))
    tensor = checkpoint.tensor("lm_head.weight")
    assert np.shares_memory(tensor, checkpoint.header.mapped) and not tensor.flags.writeable
    assert tensor.dtype == dtype and tensor.dtype.name == checkpoint.info("lm_head.weight").dtype
    checkpoint.close()
    assert tensor.astype(np.float32).sum() == 32


@pytest.mark.parametrize("name", ["I32", "Q8_1", "Q8_K"])
def test_types_without_decoder_are_named(name, required, write_gguf):
    kind = next(kind for kind in KNOWN.values() if kind.name == name)
    data = np.zeros((4, 512 // kind.block * kind.size), np.uint8)
    path = write_gguf("llama", required("llama"), {"output.weight": (data, gguf.GGMLQuantizationType(kind.number))})
    checkpoint = GGUFCheckpoint.open(path)
    with pytest.raises(CheckpointError, match=f"'output.weight'.*type {name}"):
        GGUFScheme.from_checkpoint(checkpoint).weight(checkpoint, "lm_head", 4, 512)
    with pytest.raises(CheckpointError, match=f"'output.weight'.*type {name}"):
        checkpoint.tensor("lm_head.weight")


def test_what_does_not_fit_is_named(write_gguf, required):
    tensors = {"output.weight": np.ones((4, 8), np.float32), "output.scale": np.ones(1, np.float32)}
    checkpoint = GGUFCheckpoint.open(write_gguf("llama", required("llama"), tensors))
    scheme = GGUFScheme.from_checkpoint(checkpoint)
    with pytest.raises(CheckpointError, match=r"'output.weight'.*\[4, 8\], but the model needs \[8, 4\]"):
        scheme.weight(checkpoint, "lm_head", 8, 4)
    with pytest.raises(CheckpointError, match="'output.weight'.*separate scale, 'output.scale'"):
        scheme.weight(checkpoint, "lm_head", 4, 8)
    with pytest.raises(CheckpointError, match="'lm_heat.weight' is missing.*Did you mean 'lm_head.weight'"):
        scheme.weight(checkpoint, "lm_heat", 4, 8)


def test_smollm2_equals_transformers_reading(smollm2):
    """All names, and the values of one layer, by gguf's table and transformers' way to undo the converter."""
    from transformers import AutoModelForCausalLM, LlamaConfig
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

    checkpoint = GGUFCheckpoint.open(smollm2)
    scheme = GGUFScheme.from_checkpoint(checkpoint)
    config = LlamaConfig(**checkpoint.config())
    processor = LlamaTensorProcessor(config.to_dict())
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    names = {f"{table.get_name(name.removesuffix('.weight'))}.weight": name for name in model.state_dict()}
    assert set(checkpoint.tensor_names()) == set(names.values()) - {"lm_head.weight"}
    wanted = ("output_norm", "blk.29.")
    for tensor in gguf.GGUFReader(smollm2).tensors:
        if not tensor.name.startswith(wanted):
            continue
        plain = gguf.dequantize(tensor.data, tensor.tensor_type)
        expected = np.copy(processor.process(plain, tensor.name).weights)
        name = names[tensor.name]
        if expected.ndim == 2:
            ours = values(scheme.weight(checkpoint, name.removesuffix(".weight"), *expected.shape))
        else:
            ours = checkpoint.tensor(name)
        np.testing.assert_array_equal(ours, expected)


def test_all_of_smollm2_loads(smollm2):
    checkpoint = GGUFCheckpoint.open(smollm2)
    scheme = GGUFScheme.from_checkpoint(checkpoint)
    kinds = set()
    for name in checkpoint.tensor_names():
        info = checkpoint.info(name)
        if len(info.shape) == 2:
            weight = scheme.weight(checkpoint, name.removesuffix(".weight"), *info.shape)
            kinds.add((type(weight), weight.bits, weight.scales.dtype.type))
        if name == "model.embed_tokens.weight":
            part = replace(weight, codes=weight.codes[:99], scales=weight.scales[:99], minimums=weight.minimums[:99])
            expected = gguf.dequantize(checkpoint.rows(name)[:99], gguf.GGMLQuantizationType.Q8_0)
            np.testing.assert_array_equal(values(part), expected)
    assert kinds == {(GroupedInt, 4, np.float16), (GroupedInt, 8, np.float16)}
