"""What bitsandbytes stores in one layer: blocks across rows, bytes by other names, and all that can be wrong."""

import json

import ml_dtypes
import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm.interfaces.quantization import ChannelInt8, Codebook4, Dense
from modulm_quant_bitsandbytes.quantized import NF4, nf4
from modulm_quant_bitsandbytes.scheme import BitsAndBytes
from modulm_testkit.oracles.weights import dequantised, faults

UP = "model.layers.0.mlp.up_proj"


def load(checkpoint, shape):
    return BitsAndBytes.from_checkpoint(checkpoint).weight(checkpoint, UP, *shape)


@pytest.mark.parametrize(
    ("shape", "block", "group"),
    [
        ((4, 128), 64, 64),
        ((3, 96), 64, 32),
        ((5, 48), 64, 16),
        ((2, 100), 64, 4),
        ((7, 6), 64, 2),
        ((2, 4096), 4096, 4096),
    ],
)
def test_blocks_may_span_rows(four_bit, shape, block, group):
    layer = four_bit(shape, block=block)
    weight = load(layer.checkpoint(), shape)
    assert isinstance(weight, Codebook4) and weight.group_size == group and not faults(weight)
    np.testing.assert_allclose(dequantised(weight), layer.worth, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4, 33), (3, 5)])
def test_odd_rows_become_plain_numbers(four_bit, shape):
    layer = four_bit(shape)
    weight = load(layer.checkpoint(), shape)
    assert isinstance(weight, Dense) and not faults(weight)
    np.testing.assert_allclose(dequantised(weight), layer.worth, rtol=1e-6)


@pytest.mark.parametrize("storage", [np.int8, np.float16, ml_dtypes.bfloat16, np.float32])
def test_bytes_under_other_names(four_bit, storage):
    layer = four_bit((4, 128), storage=storage)
    np.testing.assert_allclose(dequantised(load(layer.checkpoint(), (4, 128))), layer.worth, rtol=1e-6)


def drop(name):
    return lambda layer: layer.tensors.pop(f"{UP}.{name}")


def put(name, array):
    return lambda layer: layer.tensors.update({f"{UP}.{name}": array})


def state(**keys):
    return lambda layer: layer.state.update(keys)


FOUR_BIT_FAULTS = {
    "no absmax": (drop("weight.absmax"), "up_proj.weight.absmax'"),
    "no quant_map": (drop("weight.quant_map"), "up_proj.weight.quant_map'"),
    "no codes": (drop("weight"), "up_proj.weight'"),
    "no outer scales": (drop("weight.nested_absmax"), "up_proj.weight.nested_absmax'"),
    "no levels": (drop("weight.nested_quant_map"), "up_proj.weight.nested_quant_map'"),
    "a tensor too many": (put("weight.zeros", np.zeros(4, np.float32)), "up_proj.weight.zeros' .* has no place"),
    "too few codes": (put("weight", np.zeros((9, 1), np.uint8)), "up_proj.weight' .* 9 bytes"),
    "codes of 64 bits": (put("weight", np.zeros((32, 1), np.int64)), "up_proj.weight' .* int64"),
    "too few scales": (put("weight.absmax", np.zeros(3, np.uint8)), r"up_proj.weight.absmax' .*\[3\]"),
    "scales of one level": (put("weight.absmax", np.zeros(8, np.float32)), "up_proj.weight.absmax' .*float32"),
    "NaN": (put("weight.nested_absmax", np.full(2, np.nan, np.float32)), "up_proj.weight.nested_absmax' .* NaN"),
    "infinite values": (put("weight.quant_map", np.full(16, np.inf, np.float32)), "up_proj.weight.quant_map' .* NaN"),
    "another type": (state(quant_type="nf8"), "quant_type='nf8'"),
    "another shape": (state(shape=[4, 64]), r"shape=\[4, 64\]"),
    "no shape": (state(shape=None), "shape=None"),
    "blocks of 0": (state(blocksize=0), "blocksize=0"),
    "blocks of half": (state(blocksize=64.5), "blocksize=64.5"),
    "blocks of scales of 0": (state(nested_blocksize=0), "nested_blocksize=0"),
    "no offset": (state(nested_offset=None), "nested_offset=None"),
    "offset that is none": (state(nested_offset=float("nan")), "nested_offset=nan"),
}


@pytest.mark.parametrize("fault", FOUR_BIT_FAULTS)
def test_faults_of_blocks_are_named(four_bit, fault):
    spoil, said = FOUR_BIT_FAULTS[fault]
    layer = four_bit((4, 128), nested=4)
    spoil(layer)
    checkpoint = layer.checkpoint()
    scheme = BitsAndBytes.from_checkpoint(checkpoint)
    for ask in (scheme.rule, scheme.weight):
        with pytest.raises(CheckpointError, match=said):
            ask(checkpoint, UP, 4, 128)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_state_that_is_no_json_object(four_bit, plain, raw):
    layer = four_bit((4, 128))
    tensors = {**layer.tensors, layer.name: np.frombuffer(raw, np.uint8)}
    with pytest.raises(CheckpointError, match="quant_state.bitsandbytes__nf4"):
        load(plain(tensors, load_in_4bit=True), (4, 128))


def test_state_that_is_missing(four_bit, plain):
    layer = four_bit((4, 128))
    with pytest.raises(CheckpointError, match="up_proj.weight.quant_state.bitsandbytes__nf4 .*is missing"):
        load(plain(layer.tensors, load_in_4bit=True), (4, 128))


EIGHT_BIT_FAULTS = {
    "no scales": (drop("SCB"), "up_proj.SCB' is missing"),
    "no codes": (drop("weight"), "up_proj.weight'"),
    "codes of 4 bits": (put("weight", np.zeros((4, 128), np.uint8)), "up_proj.weight' .*uint8"),
    "too few scales": (put("SCB", np.ones(3, np.float32)), r"up_proj.SCB' .*\[3\]"),
    "whole scales": (put("SCB", np.ones(4, np.int32)), "up_proj.SCB' .*int32"),
    "NaN": (put("SCB", np.full(4, np.nan, np.float32)), "up_proj.SCB' .* NaN"),
    "a GPU's order": (put("weight_format", np.array(2, np.uint8)), r"up_proj.weight_format' .* is \[2\]"),
    "a tensor too many": (put("CB", np.zeros(4, np.float32)), "up_proj.CB' .* has no place"),
}


@pytest.mark.parametrize("fault", EIGHT_BIT_FAULTS)
def test_faults_of_rows_are_named(eight_bit, fault):
    spoil, said = EIGHT_BIT_FAULTS[fault]
    layer = eight_bit((4, 128))
    spoil(layer)
    with pytest.raises(CheckpointError, match=said):
        load(layer.checkpoint(), (4, 128))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"load_in_4bit": False}, "load_in_4bit=False"),
        ({"load_in_8bit": True}, "load_in_4bit=True"),
        ({"load_in_4bit": "yes"}, "load_in_4bit='yes'"),
    ],
)
def test_flags_that_contradict(four_bit, flags, said):
    checkpoint = four_bit((4, 128)).checkpoint(**flags)
    with pytest.raises(CheckpointError, match=said):
        BitsAndBytes.from_checkpoint(checkpoint)


def test_a_layer_of_other_bits_than_declared(four_bit, eight_bit):
    for layer, flags in (
        (four_bit((4, 128)), {"load_in_4bit": False, "load_in_8bit": True}),
        (eight_bit((4, 128)), {"load_in_8bit": False, "load_in_4bit": True}),
    ):
        with pytest.raises(CheckpointError, match="up_proj.*load_in_.bit=True"):
            load(layer.checkpoint(**flags), (4, 128))


def test_rows_without_a_word_on_their_order(eight_bit):
    layer = eight_bit((4, 128))
    del layer.tensors[f"{UP}.weight_format"]
    weight = load(layer.checkpoint(), (4, 128))
    assert isinstance(weight, ChannelInt8)
    np.testing.assert_allclose(dequantised(weight), layer.worth, rtol=1e-6)


def test_each_number_becomes_the_nearest_of_its_block():
    numbers = np.random.default_rng(0).standard_normal((6, 96)).astype(np.float32)
    numbers[1] = 0
    blocks = numbers.astype(np.float64).reshape(-1, 64)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    nearest = np.abs(blocks[..., None] - largest[..., None] * NF4.astype(np.float64)).argmin(axis=-1)
    weight = nf4(numbers, "")
    assert not faults(weight) and weight.group_size == 32
    np.testing.assert_allclose(
        dequantised(weight), (NF4.astype(np.float64)[nearest] * largest).reshape(6, 96), rtol=1e-6
    )


def test_layers_that_stay_plain_while_loading(plain):
    rng = np.random.default_rng(0)
    quantized = ("model.layers.0.mlp.up_proj", "model.layers.0.mlp.experts.3.w1", "model.layers.0.self_attn.qkv_proj")
    kept = ("model.embed_tokens", "lm_head", "model.layers.0.mlp.gate", "model.layers.0.odd_proj")
    shapes = {name: (4, 9 if "odd" in name else 8) for name in (*quantized, *kept)}
    checkpoint = plain({f"{name}.weight": rng.normal(size=shapes[name]).astype(np.float16) for name in shapes})
    scheme = BitsAndBytes.from_checkpoint(checkpoint)
    for name in quantized:
        assert isinstance(scheme.weight(checkpoint, name, 4, 8), Codebook4)
        assert scheme.rule(checkpoint, name, 4, 8) == "nf4, blocks of 64"
    for name in kept:
        assert scheme.weight(checkpoint, name, *shapes[name]) is None
    assert scheme.describe()["layers"] == {"nf4, blocks of 64": 3}
    json.dumps(scheme.describe())


def test_matrices_that_one_tensor_stacks(plain):
    stack = np.random.default_rng(0).standard_normal((3, 4, 128)).astype(np.float32)
    scheme = BitsAndBytes.from_checkpoint(plain({}))
    one = Dense(out_features=4, in_features=128, data=stack[1])
    made = scheme.slice("model.layers.0.mlp.experts.gate_up_proj", one)
    np.testing.assert_array_equal(dequantised(made), dequantised(nf4(stack[1], "")))
    stored = BitsAndBytes.from_checkpoint(plain({}, load_in_4bit=True))
    assert stored.slice("model.layers.0.mlp.experts.gate_up_proj", one) is one


@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
def test_numbers_that_cannot_be_quantized(plain, spoiled):
    numbers = np.ones((4, 128), np.float32)
    numbers[2, 70] = spoiled
    checkpoint = plain({f"{UP}.weight": numbers})
    with pytest.raises(CheckpointError, match=f"'{UP}.weight' .* NaN or infinite"):
        load(checkpoint, (4, 128))
