"""Everything that can be wrong with a layer or a declaration: a `CheckpointError` names tensor or key."""

import ml_dtypes
import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm_quant_compressed_tensors.scheme import CompressedTensors

UP = "model.layers.0.mlp.up_proj"
SHAPE = (6, 64)


def drop(name):
    return lambda layer: layer.tensors.pop(name)


def put(name, array):
    return lambda layer: layer.tensors.update({name: array})


def change(name, spoil):
    return lambda layer: layer.tensors.update({name: spoil(layer.tensors[name].copy())})


def nan(array):
    array.reshape(-1)[1] = np.nan
    return array


GROUPS, ZEROS, ORDER, BYTES = "int4, groups", "int4, groups, zero points", "int4, groups, order", "bytes, rows"
TENSOR_FAULTS = [
    (GROUPS, drop("weight_packed"), "up_proj.weight_packed' is missing"),
    (GROUPS, drop("weight_scale"), "up_proj.weight_scale' is missing"),
    (GROUPS, drop("weight_shape"), "up_proj.weight_shape' is missing"),
    (ZEROS, drop("weight_zero_point"), "up_proj.weight_zero_point' is missing"),
    (ORDER, drop("weight_g_idx"), "up_proj.weight_g_idx' is missing"),
    (BYTES, drop("weight_scale"), "up_proj.weight_scale' is missing"),
    ("nvfp4", drop("weight_global_scale"), "up_proj.weight_global_scale' is missing"),
    (GROUPS, put("weight_zero_point", np.zeros((1, 4), np.int32)), None),
    (GROUPS, put("weight_other", np.zeros(2, np.float32)), "up_proj.weight_other' .*no place"),
    (GROUPS, put("weight", np.zeros(SHAPE, np.float16)), "up_proj.weight' .*no place"),
    (GROUPS, put("weight_packed", np.zeros((6, 7), np.int32)), r"up_proj.weight_packed' .*int32 \[6, 7\]"),
    (GROUPS, put("weight_packed", np.zeros((6, 8), np.int64)), r"up_proj.weight_packed' .*int64"),
    (GROUPS, put("weight_scale", np.ones((6, 2), np.float16)), r"up_proj.weight_scale' .*\[6, 2\]"),
    (GROUPS, put("weight_scale", np.ones((6, 4), np.int8)), r"up_proj.weight_scale' .*int8"),
    (GROUPS, put("weight_shape", np.array([6, 128])), r"up_proj.weight_shape' .*is \[6, 128\]"),
    (GROUPS, change("weight_scale", nan), "up_proj.weight_scale' .*NaN"),
    (BYTES, change("weight_scale", nan), "up_proj.weight_scale' .*NaN"),
    (BYTES, put("weight_zero_point", np.ones((6, 1), np.int8)), "up_proj.weight_zero_point' .*not zero"),
    (BYTES, put("input_scale", np.full(1, np.inf, np.float32)), "up_proj.input_scale' .*NaN or infinite"),
    ("bytes, tensor", put("weight_scale", np.ones(2, np.float32)), r"up_proj.weight_scale' .*\[2\]"),
    (ZEROS, put("weight_zero_point", np.zeros((6, 4), np.int32)), r"up_proj.weight_zero_point' .*\[6, 4\]"),
    (ORDER, put("weight_g_idx", np.zeros(64, np.int32)), "up_proj.weight_g_idx' .*does not give each of 4 groups 16"),
    (ORDER, put("weight_g_idx", np.full(64, 9, np.int32)), "up_proj.weight_g_idx' "),
    (ORDER, put("weight_g_idx", np.full(64, -2, np.int32)), "up_proj.weight_g_idx' "),
    (ORDER, put("weight_g_idx", np.zeros(32, np.int32)), r"up_proj.weight_g_idx' .*\[32\]"),
    ("fp8, tensor", put("weight", np.zeros(SHAPE, np.float16)), "up_proj.weight' .*float16"),
    ("fp8, blocks", put("weight_scale", np.ones((2, 2), np.float32)), r"up_proj.weight_scale' .*\[2, 2\]"),
    ("mxfp8", change("weight_scale", lambda a: np.full_like(a, 255)), "up_proj.weight_scale' .*NaN"),
    ("mxfp4", change("weight_scale", lambda a: np.full_like(a, 255)), "up_proj.weight_scale' .*NaN"),
    ("nvfp4", put("weight_global_scale", np.zeros(1, np.float32)), "up_proj.weight_global_scale' .*divide"),
    ("nvfp4", put("weight_global_scale", np.full(1, np.nan, np.float32)), "up_proj.weight_global_scale' .*NaN"),
    (
        "nvfp4",
        change("weight_scale", lambda a: np.full_like(a, ml_dtypes.float8_e4m3fn(np.nan))),
        "weight_scale' .*NaN",
    ),
]


@pytest.mark.parametrize(("kind", "spoil", "said"), TENSOR_FAULTS)
def test_tensors_are_named(stored, kind, spoil, said):
    layer = stored(kind)
    spoil(layer)
    checkpoint = layer.checkpoint()
    scheme = CompressedTensors.from_checkpoint(checkpoint)
    if said is None:  # written by old versions, and of no consequence
        assert scheme.rule(checkpoint, UP, *SHAPE)
        return
    for ask in (scheme.rule, scheme.weight):
        with pytest.raises(CheckpointError, match=said):
            ask(checkpoint, UP, *SHAPE)


def weights(**keys):
    return lambda layer: layer.weights.update(keys)


def group(**keys):
    return lambda layer: layer.group.update(keys)


def declared(**keys):
    return lambda layer: layer.declared.update(keys)


KEY_FAULTS = [
    (GROUPS, weights(num_bits=9), "num_bits=9"),
    (GROUPS, weights(num_bits=0), "num_bits=0"),
    (GROUPS, weights(num_bits="4"), "num_bits='4'"),
    (GROUPS, weights(type="complex"), "type='complex'"),
    (GROUPS, weights(type="float"), "type='float'"),
    (GROUPS, weights(symmetric="no"), "symmetric='no'"),
    (GROUPS, weights(strategy="block"), "strategy='block'"),
    (GROUPS, weights(group_size=0), "group_size=0"),
    (GROUPS, weights(group_size=None), "group_size=None"),
    (GROUPS, weights(actorder="random"), "actorder='random'"),
    (GROUPS, weights(dynamic=True), "dynamic=True"),
    (GROUPS, weights(zeros="packed"), "zeros='packed'"),
    (GROUPS, group(format="marlin-24"), "format='marlin-24'"),
    (GROUPS, group(format=None), "format=None"),
    (GROUPS, group(weights="W4A16"), "weights='W4A16'"),
    (GROUPS, group(targets="Linear"), "targets='Linear'"),
    (GROUPS, group(targets=["re:(*"]), r"targets=\['re:\(\*'\]"),
    (GROUPS, declared(ignore=["re:["]), r"ignore=\['re:\['\]"),
    (GROUPS, declared(config_groups=None), "config_groups=None"),
    (GROUPS, declared(config_groups={"W4A16": ["Linear"]}), "config_groups=.*'W4A16' must be an object"),
    (GROUPS, declared(transform_config={"config_groups": {"u": {}}}), "transform_config="),
    (GROUPS, declared(sparsity_config={"format": "sparse-bitmask"}), "sparsity_config="),
    (GROUPS, declared(quantization_status="frozen"), "quantization_status='frozen'"),
    ("fp8, blocks", weights(block_structure=[0, 4]), "block_structure="),
    ("fp8, blocks", weights(block_structure=None), "block_structure=None"),
    ("fp8, rows", weights(symmetric=False), "symmetric=False"),
    ("fp8, rows", weights(num_bits=4), "num_bits=4"),
    ("nvfp4", weights(num_bits=8), "num_bits=8"),
]


@pytest.mark.parametrize(("kind", "spoil", "said"), KEY_FAULTS)
def test_keys_are_named(stored, kind, spoil, said):
    layer = stored(kind)
    spoil(layer)
    with pytest.raises(CheckpointError, match=said):
        CompressedTensors.from_checkpoint(layer.checkpoint())


@pytest.mark.parametrize("size", [48, 7, 128])
def test_groups_that_do_not_divide(stored, size):
    layer = stored(GROUPS)
    layer.weights["group_size"] = size
    checkpoint = layer.checkpoint()
    with pytest.raises(CheckpointError, match=f"group_size={size} of layer '{UP}' .*64 inputs"):
        CompressedTensors.from_checkpoint(checkpoint).rule(checkpoint, UP, *SHAPE)


@pytest.mark.parametrize("order", ["static", "weight", "group", "dynamic", None, False])
def test_order_that_rows_do_not_have(stored, order):
    """Of a group that is a whole row there is none to say: vllm-project/llm-compressor#2805."""
    layer = stored("int4, rows")
    layer.weights["actorder"] = order
    checkpoint = layer.checkpoint()
    assert CompressedTensors.from_checkpoint(checkpoint).weight(checkpoint, UP, *SHAPE).group_size == 64


def test_scales_of_the_cache_are_told(stored):
    layer = stored(GROUPS)
    layer.declared["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    checkpoint = layer.checkpoint()
    checkpoint._tensors |= {f"model.layers.0.self_attn.{one}_scale": np.ones(1, np.float32) for one in "kv"}
    scheme = CompressedTensors.from_checkpoint(checkpoint)
    assert scheme.describe()["KV scales"].startswith("in 2 tensors: for a KV cache")
    assert scheme.kv_cache_dtype(checkpoint) == "fp8_e4m3"
    scales = scheme.kv_scales(checkpoint, "model.layers.0.self_attn", 2)
    assert scales.key == scales.value == (1.0, 1.0)
