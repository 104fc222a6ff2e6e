"""Folders with one fault each: one `CheckpointError` that names it, never a wrong answer, never a bare Python error."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from modulm import LLM, SamplingParams
from modulm.errors import CheckpointError

COUNTS = ["hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "vocab_size"]
COUNTS += ["intermediate_size", "max_position_embeddings", "head_dim"]


@pytest.fixture
def folder(tiny_folder, tmp_path):
    return shutil.copytree(tiny_folder, tmp_path / "model")


def set_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load(folder):
    return LLM(model=folder, num_kv_blocks=40)


@pytest.mark.parametrize("value", ["32", "x", 0, -1, 1.5, [1], {}, True])
@pytest.mark.parametrize("key", COUNTS)
def test_a_count_that_is_none(folder, key, value):
    set_config(folder, **{key: value})
    with pytest.raises(CheckpointError, match=rf"^{key}=.* is refused: it must be a whole number of at least 1"):
        load(folder)


def test_more_layers_than_tensors(folder):
    """They were all built first, which took minutes."""
    set_config(folder, num_hidden_layers=10**6)
    with pytest.raises(CheckpointError, match="num_hidden_layers=1000000 .*21 tensors"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps='1e-5'.*a number"),
        ({"rms_norm_eps": -1}, "rms_norm_eps=-1.*at least 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings='no'.*true or false"),  # it was tied
        ({"attention_bias": 0}, "attention_bias=0.*true or false"),
        ({"rope_theta": "x"}, "rope_theta='x'"),
        ({"rope_parameters": "x"}, "rope_parameters='x'.*an object"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "x"}}, "rope_theta='x'.*a number"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_theta=0 .*over 0"),  # it was the default
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "factor='2'.*a number"),
        ({"quantization_config": "awq"}, "quantization_config='awq'.*no object"),
    ],
)
def test_a_value_of_the_wrong_kind(folder, changes, message):
    set_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"\xff\xfe", "tokenizer.json cannot be read as text"),
        ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja cannot be read as text"),
        ("tokenizer_config.json", b'{"chat_template": [5]}', "lacks 'name' or 'template'"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "x"}]}', "lacks 'name' or 'template'"),
        ("tokenizer_config.json", b"[]", "holds a list"),
        ("config.json", b"\xff", "config.json cannot be read as JSON"),
        ("generation_config.json", b"[]", "holds a list"),
        ("model.safetensors", b"", "not a safetensors file"),
        ("model.safetensors", b"\x10" * 200, "not a safetensors file"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": 5}}', "Shard '5'.*is missing"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../x"}}', "Shard '../x'.*is missing"),
    ],
)
def test_a_file_of_something_else(folder, name, content, message):
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def change_weights(folder, **changes):
    tensors = load_file(folder / "model.safetensors") | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("model.norm.weight", torch.ones(32, dtype=torch.int32), "holds int32 numbers"),
        ("lm_head.weight", torch.ones(320, 32, dtype=torch.bool), "holds bool numbers"),
        ("model.norm.weight", torch.ones(31), r"shape \[31\], but the model needs \[32\]"),
        ("model.layers.1.mlp.down_proj.weight", None, "down_proj.weight' is missing"),
        ("model.layers.7.mlp.up_proj.weight", torch.ones(3), "no place in the model"),
    ],
)
def test_a_tensor_that_does_not_fit(folder, name, tensor, message):
    change_weights(folder, **{name: tensor})
    with pytest.raises(CheckpointError, match=message):
        load(folder)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_fail_requests_with_the_reason(folder, number):
    name = "model.layers.0.mlp.down_proj.weight"
    weight = load_file(folder / "model.safetensors")[name]
    weight[0, 0] = number
    change_weights(folder, **{name: weight})
    for temperature in (0.0, 1.0):
        (output,) = load(folder).generate("hello", SamplingParams(temperature=temperature))
        assert "not finite" in output.error and output.outputs[0].finish_reason == "error"
        assert output.outputs[0].token_ids == []
