"""Safetensors folders: single, sharded, every float type; damaged files name the file and the tensor."""

import json
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.errors import CheckpointError
from modulm.reference.tensors import to_torch


def _folder(tmp_path, tensors, name="model.safetensors"):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    save_file(tensors, tmp_path / name)
    return tmp_path


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_single_file_round_trip(tmp_path, dtype):
    want = (torch.randn(3, 5) * 9).to(dtype)
    checkpoint = SafetensorsCheckpoint.open(_folder(tmp_path, {"a.weight": want}))
    assert checkpoint.info("a.weight").shape == (3, 5)
    assert checkpoint.info("a.weight").dtype == str(dtype).removeprefix("torch.")
    array = checkpoint.tensor("a.weight")
    assert array.dtype.name == checkpoint.info("a.weight").dtype and not array.flags.writeable
    assert torch.equal(to_torch(array).view(torch.uint8), want.view(torch.uint8))
    checkpoint.close()
    assert array.shape == (3, 5)


def _write(folder, header, data, padding=0):
    raw = json.dumps(header).encode() + b" " * padding
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return folder


def test_data_at_odd_addresses_are_copied(tmp_path):
    want = np.arange(6, dtype=np.float32)
    header = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    for padding in range(4):
        array = SafetensorsCheckpoint.open(_write(tmp_path, header, want.tobytes(), padding)).tensor("a")
        assert array.flags.aligned
        np.testing.assert_array_equal(array, want.reshape(2, 3))


def test_empty_tensors_and_single_numbers(tmp_path):
    tensors = {"none": torch.zeros(0, 4), "one": torch.tensor(3.0), "last": torch.zeros(2, 0)}
    checkpoint = SafetensorsCheckpoint.open(_folder(tmp_path, tensors))
    assert {name: checkpoint.tensor(name).shape for name in tensors} == {"none": (0, 4), "one": (), "last": (2, 0)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [2, 2]}, r"'a' .*16 bytes, which are not those of \[2, 2\] F64 numbers"),
        ({"shape": [-1, -2]}, "'a' .*not whole numbers"),
        ({"shape": [1.0, 2]}, "'a' .*not whole numbers"),
        ({"shape": [True, 2]}, "'a' .*not whole numbers"),
        ({"shape": ["1", 2]}, "'a' .*not whole numbers"),
        ({"shape": 2}, "'a' .*lacks dtype, shape or data_offsets"),
        ({"data_offsets": [0.0, 16]}, "'a' .*not whole numbers"),
        ({"data_offsets": [0, 16, 32]}, "'a' .*lacks dtype, shape or data_offsets"),
        ({"data_offsets": [8, 24]}, "'a' .*cut off"),
        ({"data_offsets": [16, 0]}, "'a' .*cut off"),
        ({"dtype": ["F64"]}, "'a' .*has type"),
        ({"dtype": "F32", "data_offsets": [0, 8]}, "model.safetensors has 8 bytes after its last tensor"),
        ({"dtype": "F32", "data_offsets": [8, 16]}, "'a' .*where the one before it ends"),
    ],
)
def test_headers_that_contradict_themselves(tmp_path, change, message):
    entry = {"dtype": "F64", "shape": [1, 2], "data_offsets": [0, 16]}
    with pytest.raises(CheckpointError, match=message):
        SafetensorsCheckpoint.open(_write(tmp_path, {"a": entry | change}, b"\0" * 16))


def test_tensors_that_overlap(tmp_path):
    header = {
        "a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
        "b": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]},
    }
    with pytest.raises(CheckpointError, match="'b' .*where the one before it ends"):
        SafetensorsCheckpoint.open(_write(tmp_path, header, b"\0" * 12))


@pytest.mark.parametrize("shape", [[1] * 100, [0, 2**70], [0, 2**62, 2**62]])
def test_shapes_that_no_array_has(tmp_path, shape):
    size = 0 if 0 in shape else 1
    header = {"a": {"dtype": "U8", "shape": shape, "data_offsets": [0, size]}}
    checkpoint = SafetensorsCheckpoint.open(_write(tmp_path, header, b"\0" * size))
    with pytest.raises(CheckpointError, match="'a' .*cannot be read"):
        checkpoint.tensor("a")


@pytest.mark.parametrize("content", [None, b"", b"too short"])
def test_a_file_that_changes_before_its_data_are_read(tmp_path, content):
    checkpoint = SafetensorsCheckpoint.open(_folder(tmp_path, {"a": torch.ones(2)}))
    file = tmp_path / "model.safetensors"
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be (opened|read)"):
        checkpoint.tensor("a")


def test_shards(tmp_path):
    first, second = {"a": torch.ones(2)}, {"b": torch.zeros(3)}
    _folder(tmp_path, first, "model-00001-of-00002.safetensors")
    save_file(second, tmp_path / "model-00002-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = SafetensorsCheckpoint.open(tmp_path)
    assert set(checkpoint.tensor_names()) == {"a", "b"}
    np.testing.assert_array_equal(checkpoint.tensor("b"), second["b"])
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
