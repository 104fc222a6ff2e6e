"""Safetensors folders: single, sharded, every float type; damaged files name the file and the tensor."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.errors import CheckpointError


def _folder(tmp_path, tensors, name="model.safetensors"):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    save_file(tensors, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_single_file_round_trip(tmp_path, dtype):
    want = torch.randn(3, 5).to(dtype)
    checkpoint = SafetensorsCheckpoint.open(_folder(tmp_path, {"a.weight": want}))
    assert checkpoint.info("a.weight").shape == (3, 5)
    assert checkpoint.info("a.weight").dtype == str(dtype).removeprefix("torch.")
    assert torch.equal(checkpoint.tensor("a.weight"), want)


def test_shards(tmp_path):
    first, second = {"a": torch.ones(2)}, {"b": torch.zeros(3)}
    _folder(tmp_path, first, "model-00001-of-00002.safetensors")
    save_file(second, tmp_path / "model-00002-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = SafetensorsCheckpoint.open(tmp_path)
    assert set(checkpoint.tensor_names()) == {"a", "b"}
    assert torch.equal(checkpoint.tensor("b"), second["b"])
    index["weight_map"]["c"] = "model-00002-of-00002.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="Tensor 'c'.*missing in its shard"):
        SafetensorsCheckpoint.open(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="Shard 'model-00002-of-00002.safetensors'"):
        SafetensorsCheckpoint.open(tmp_path)


def test_a_missing_tensor_names_the_nearest(tmp_path):
    checkpoint = SafetensorsCheckpoint.open(_folder(tmp_path, {"model.norm.weight": torch.ones(2)}))
    with pytest.raises(CheckpointError, match="'model.norm.weigth' is missing.*Did you mean 'model.norm.weight'"):
        checkpoint.tensor("model.norm.weigth")


def test_truncated_file_names_the_tensor(tmp_path):
    folder = _folder(tmp_path, {"a": torch.ones(1000)})
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="Tensor 'a' .* cut off"):
        SafetensorsCheckpoint.open(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 4,
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 4) + b"[1]x",
        struct.pack("<Q", 4) + b"nope",
    ],
)
def test_garbage_is_refused(tmp_path, content):
    folder = _folder(tmp_path, {"a": torch.ones(1)})
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        SafetensorsCheckpoint.open(folder)


def test_unknown_type_is_named(tmp_path):
    folder = _folder(tmp_path, {"a": torch.ones(1)})
    header = json.dumps({"a": {"dtype": "F3", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    with pytest.raises(CheckpointError, match="Tensor 'a' .* type 'F3'"):
        SafetensorsCheckpoint.open(folder)


def test_missing_tokenizer_says_what_to_do(tmp_path):
    checkpoint = SafetensorsCheckpoint.open(_folder(tmp_path, {"a": torch.ones(1)}))
    with pytest.raises(CheckpointError, match=r"'tokenizer.json' is missing.*save_pretrained"):
        checkpoint.tokenizer()
