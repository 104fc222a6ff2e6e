"""`modulm quantize` refuses what it cannot do, by name, and leaves nothing behind. What it writes, formats try."""

import numpy as np
import pytest

from modulm.cli import main
from modulm_testkit.checkpoints import random_llama, write_folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("plain"), *random_llama())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gptq", "--format='gptq' takes calibration, which modulm does not do. It is made by gptqmodel"),
        ("awq", "pip install auto-round"),
        ("gguf", "llama-quantize"),
        ("int9", "--format='int9' is unknown. There are: int8, fp8, nf4, fp4."),
    ],
)
def test_formats_that_are_not_made_here(plain, tmp_path, capsys, name, said):
    assert main(["quantize", str(plain), str(tmp_path / "out"), f"--format={name}"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty(plain, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["quantize", str(plain), str(tmp_path), "--format=int8"]) == 2
    assert "is there already and not an empty folder" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_what_is_quantized_already(tmp_path, capsys):
    config, tensors = random_llama()
    folder = tmp_path / "quantized"
    folder.mkdir()
    write_folder(folder, {**config, "quantization_config": {"quant_method": "awq"}}, tensors)
    assert main(["quantize", str(folder), str(tmp_path / "out"), "--format=int8"]) == 2
    assert "is quantized already (awq)" in capsys.readouterr().err


def test_what_is_no_folder_of_safetensors(tmp_path, capsys):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert main(["quantize", str(file), str(tmp_path / "out"), "--format=int8"]) == 2
    assert "cannot be quantized: it is a file, not a folder" in capsys.readouterr().err


def test_numbers_that_are_none(tmp_path, capsys):
    config, tensors = random_llama()
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = np.full_like(tensors[name], np.nan)
    folder = tmp_path / "spoiled"
    folder.mkdir()
    write_folder(folder, config, tensors)
    assert main(["quantize", str(folder), str(tmp_path / "out"), "--format=fp8"]) == 2
    assert f"'{name}' in {folder} holds a number that is NaN or infinite" in capsys.readouterr().err
