"""Which group means a layer: names, expressions, classes, `ignore`, and layers that are stored as one."""

import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm_quant_compressed_tensors.scheme import CompressedTensors
from modulm_quant_compressed_tensors.targets import Targets
from modulm_testkit.fakes import MemoryCheckpoint

PREFIX = "model.layers.0."
UP = f"{PREFIX}mlp.up_proj"


def group(*targets, bits=4, **keys):
    weights = {"num_bits": bits, "type": "int", "strategy": "channel"}
    return {"targets": list(targets), "weights": weights, "format": "pack-quantized", **keys}


def targets(*groups, ignore=(), **keys):
    named = {f"group_{number}": one for number, one in enumerate(groups)}
    declared = {"quant_method": "compressed-tensors", "config_groups": named, "ignore": list(ignore), **keys}
    return Targets(MemoryCheckpoint({"quantization_config": declared}, {}))


def bits(found, module):
    arguments = found.of(module)
    return None if arguments is None else arguments.bits


def test_a_name_goes_before_an_expression_and_that_before_a_class():
    found = targets(group("Linear", bits=2), group("re:.*mlp.*", bits=3), group(UP, bits=4))
    assert bits(found, UP) == 4
    assert bits(found, f"{PREFIX}mlp.down_proj") == 3
    assert bits(found, f"{PREFIX}self_attn.o_proj") == 2


def test_embeddings_are_a_class_of_their_own():
    found = targets(group("Linear", bits=4), group("Embedding", bits=8))
    assert (bits(found, "model.embed_tokens"), bits(found, "lm_head")) == (8, 4)
    assert bits(targets(group("Linear")), "model.embed_tokens") is None


@pytest.mark.parametrize("ignored", ["lm_head", "re:.*head", "re:lm_"])
def test_ignore_goes_before_all(ignored):
    assert bits(targets(group("Linear", "lm_head"), ignore=[ignored]), "lm_head") is None


@pytest.mark.parametrize("ignored", ["head", "lm", "re:head", "lm_head.weight"])
def test_names_are_whole_and_expressions_begin_where_names_do(ignored):
    assert bits(targets(group("Linear"), ignore=[ignored]), "lm_head") == 4


def test_parts_follow_the_name_of_what_they_are_fused_into():
    found = targets(group("Linear"), ignore=[f"{PREFIX}self_attn.qkv_proj"])
    assert bits(found, f"{PREFIX}self_attn.k_proj") is None
    assert bits(found, f"{PREFIX}mlp.gate_up_proj") == 4


def test_what_is_stored_as_one_follows_its_parts():
    parts = [f"{PREFIX}self_attn.{name}_proj" for name in "qkv"]
    assert bits(targets(group("Linear"), ignore=parts), f"{PREFIX}self_attn.qkv_proj") is None
    assert bits(targets(group(*parts, bits=3)), f"{PREFIX}self_attn.qkv_proj") == 3


def test_unlike_rules_for_what_is_stored_as_one_are_refused():
    q, k, v = (f"{PREFIX}self_attn.{name}_proj" for name in "qkv")
    with pytest.raises(CheckpointError, match=r"'ignore' means q_proj of layer '.*qkv_proj', but not k_proj"):
        targets(group("Linear"), ignore=[q]).of(f"{PREFIX}self_attn.qkv_proj")
    mixed = targets(group(q, k, bits=3), group(v, bits=4))
    with pytest.raises(CheckpointError, match=r"qkv_proj' by unlike rules \(q_proj: .*int3.*v_proj: .*int4"):
        mixed.of(f"{PREFIX}self_attn.qkv_proj")
    assert bits(mixed, v) == 4


def test_groups_have_formats_of_their_own_or_that_of_all():
    wide = group("re:.*down_proj", bits=8, format="int-quantized")
    found = targets(group("Linear", format=None), wide, format="pack-quantized")
    assert found.of(UP).format == "pack-quantized"
    assert found.of(f"{PREFIX}mlp.down_proj").format == "int-quantized"


def test_groups_of_attention_and_of_activations_say_nothing_of_weights():
    others = {"targets": ["LlamaAttention"], "input_activations": {"num_bits": 8}, "weights": None}
    assert bits(targets(others, group("Linear")), UP) == 4


@pytest.mark.parametrize(("size", "strategy"), [(None, "tensor"), (-1, "channel"), (32, "group")])
def test_a_strategy_follows_from_the_group_size(size, strategy):
    one = group("Linear")
    one["weights"] = {"num_bits": 4, "type": "int", "group_size": size}
    assert targets(one).of(UP).strategy == strategy


def test_quantized_layers_that_nothing_means(stored):
    layer = stored("int4, groups")
    layer.declared["ignore"] = [UP]
    checkpoint = layer.checkpoint()
    with pytest.raises(CheckpointError, match=f"Layer '{UP}' .*weight_packed.*'ignore' does"):
        CompressedTensors.from_checkpoint(checkpoint).rule(checkpoint, UP, 6, 64)


def test_plain_layers_of_a_class_that_is_meant(stored):
    layer = stored("int4, groups")
    layer.tensors = {"weight": np.ones((6, 64), np.float16)}
    checkpoint = layer.checkpoint()
    assert CompressedTensors.from_checkpoint(checkpoint).weight(checkpoint, UP, 6, 64) is None
