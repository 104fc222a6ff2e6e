"""`modulm quantize` finds the format that writes, refuses what it cannot do by name, and leaves nothing behind."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest

from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.cli import main
from modulm.errors import ConfigError
from modulm.interfaces.quantization import QuantizationScheme
from modulm.interfaces.quantizing import Wish, write_layers
from modulm.plugins.registry import registry
from modulm_testkit.checkpoints import random_llama, write_folder


class Halves(QuantizationScheme):
    """Writes float16 under another name."""

    name = "halves"
    writes = ("halves", "halves-many")
    wishes: list = []

    @classmethod
    def matches(cls, checkpoint):
        raise NotImplementedError

    @classmethod
    def from_checkpoint(cls, checkpoint):
        raise NotImplementedError

    def weight(self, checkpoint, module, out_features, in_features):
        raise NotImplementedError

    @classmethod
    def quantize(cls, checkpoint, out, wish):
        wish.takes("method", "bits")
        wish.one_of("bits", (8, 16), 16)
        cls.wishes.append(wish)

        def layer(module, matrix):
            return {"half": matrix.astype(np.float16), "size": np.array([matrix.shape[1]], np.int32)}

        return f"{write_layers(checkpoint, out, layer, lambda ignored: {'ignore': ignored})} layers halved"


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    family = registry("modulm.quantization")
    monkeypatch.setattr(family, "_registered", {**family._registered})
    family.register("halves", Halves)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("plain"), *random_llama())
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_layers_are_written_one_at_a_time(plain, tmp_path, capsys):
    """Read with the format's definition, not with our reader: a length, a JSON header, data without gaps."""
    out = tmp_path / "out"
    assert main(["quantize", str(plain), str(out), "--format=halves-many", "--bits=8"]) == 0
    assert capsys.readouterr().out == f"{out}: halves-many, 14 layers halved.\n"
    assert Halves.wishes.pop() == Wish(format="halves-many", bits=8)
    raw = (out / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    _, tensors = random_llama()
    places = []
    for name, array in tensors.items():
        quantized = name.endswith("_proj.weight")
        entry = header[name.removesuffix("weight") + "half" if quantized else name]
        start, end = entry["data_offsets"]
        found = np.frombuffer(raw[8 + length + start : 8 + length + end], np.float16 if quantized else np.float32)
        assert entry["dtype"] == ("F16" if quantized else "F32")
        np.testing.assert_array_equal(found.reshape(entry["shape"]), array.astype(found.dtype))
        places.append((start, end))
    places += [tuple(entry["data_offsets"]) for name, entry in header.items() if name.endswith(".size")]
    places.sort()
    assert places[0][0] == 0 and places[-1][1] == len(raw) - 8 - length
    assert all(end == start for (_, end), (start, _) in zip(places, places[1:], strict=False))
    assert json.loads((out / "config.json").read_text())["quantization_config"] == {"ignore": ["lm_head"]}
    assert (out / "tokenizer.json").read_text() == "{}"
    assert len(list(SafetensorsCheckpoint.open(out).tensor_names())) == len(tensors) + 14


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--format=int9"], "--format='int9' is unknown. There are: "),
        (["--format=halves-few"], "--format='halves-few' is not written by quantization 'halves'. There are: "),
        (["--format=halves", "--bits=4"], "--bits=4 is not to be had for --format='halves'. There is: 8, 16."),
        (["--format=halves", "--group-size=64"], "--group-size=64 does not fit --format='halves', whose options are: "),
        (["--format=halves", "--calibration=none.txt"], "--calibration='none.txt' is no file"),
    ],
)
def test_wishes_that_are_refused(plain, tmp_path, capsys, options, said):
    assert main(["quantize", str(plain), str(tmp_path / "out"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_formats_of_packages_that_are_not_there(plain, tmp_path, capsys, monkeypatch):
    from modulm.errors import NotInstalled

    family = registry("modulm.quantization")
    asked = []

    def missing(name):
        asked.append(name)
        raise NotInstalled(f"Quantization {name!r} is not installed. It comes with x: pip install x.")

    monkeypatch.setattr(family, "get", missing)
    for name in ("int8", "fp8", "nf4", "fp4", "gptq", "awq", "gguf-q4_0"):
        assert main(["quantize", str(plain), str(tmp_path / "out"), f"--format={name}"]) == 2
        assert f"--format={name!r} cannot be written: Quantization" in capsys.readouterr().err
    assert asked == [*["compressed-tensors"] * 2, *["bitsandbytes"] * 2, "gptq", "awq", "gguf"]


def test_a_folder_that_is_not_empty(plain, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["quantize", str(plain), str(tmp_path), "--format=halves"]) == 2
    assert "is there already and not an empty folder" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_what_is_quantized_already(tmp_path, capsys):
    config, tensors = random_llama()
    folder = tmp_path / "quantized"
    folder.mkdir()
    write_folder(folder, {**config, "quantization_config": {"quant_method": "awq"}}, tensors)
    assert main(["quantize", str(folder), str(tmp_path / "out"), "--format=halves"]) == 2
    assert "is quantized already (awq)" in capsys.readouterr().err


def test_what_is_no_folder_of_safetensors(tmp_path, capsys):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert main(["quantize", str(file), str(tmp_path / "out"), "--format=halves"]) == 2
    assert "cannot be quantized: it is a file, not a folder" in capsys.readouterr().err


@pytest.mark.parametrize("there_before", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers_that_are_none(tmp_path, capsys, dtype, there_before):
    config, tensors = random_llama()
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = np.full_like(tensors[name], np.nan).astype(getattr(ml_dtypes, dtype, dtype))
    folder, out = tmp_path / "spoiled", tmp_path / "out"
    folder.mkdir()
    write_folder(folder, config, tensors)
    if there_before:
        out.mkdir()
    assert main(["quantize", str(folder), str(out), "--format=halves"]) == 2
    assert f"'{name}' in {folder} holds a number that is NaN or infinite" in capsys.readouterr().err
    assert out.exists() is there_before and not list(out.glob("*"))


def test_options_of_a_wish():
    wish = Wish(format="x", method="rtn", group_size=32)
    wish.takes("method", "group_size")
    with pytest.raises(ConfigError, match="--group-size=32 does not fit --format='x', whose options are: --method"):
        wish.takes("method")
    with pytest.raises(ConfigError, match="are: none"):
        wish.takes()
    assert wish.one_of("method", ("rtn",), "other") == "rtn" and wish.one_of("bits", (4,), 4) == 4


def test_libraries_that_calibrate(tmp_path, monkeypatch):
    """One that is missing is named with the line that installs it; then the text is asked for."""
    with pytest.raises(
        ConfigError, match=r"is made by no-such, which is not installed: pip install no-such\. Without it"
    ):
        Wish(format="x").text("no-such")
    monkeypatch.setattr("modulm.interfaces.quantizing.find_spec", lambda name: name)
    with pytest.raises(ConfigError, match="--format='x' by no-such needs a text .* give --calibration FILE, or"):
        Wish(format="x").text("no-such")
    (tmp_path / "text").write_text("Zwölf", "utf-8")
    assert Wish(format="x", calibration=tmp_path / "text").text("no-such") == "Zwölf"
