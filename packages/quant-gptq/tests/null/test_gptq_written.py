"""What `modulm quantize --format gptq --method rtn` writes: each number the nearest, in the format's layout."""

import json

import numpy as np
import pytest

from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.cli import main
from modulm_quant_gptq.bitstream import codes, words
from modulm_quant_gptq.scheme import GPTQScheme
from modulm_testkit.checkpoints import random_llama, write_folder
from modulm_testkit.oracles.weights import dequantised


def nearest(matrix, bits, size):
    """The definition, in float64: steps of the stored scale around 0, the largest number within half a step."""
    groups = matrix.astype(np.float64).reshape(len(matrix), -1, size)
    scales = (np.abs(groups).max(-1, keepdims=True) / (2 ** (bits - 1) - 0.5)).astype(np.float16).astype(np.float64)
    steps = np.rint(groups / scales).clip(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return (steps * scales).reshape(matrix.shape)


def by_the_layout(checkpoint, module, bits):
    """The layout's definition, code by code, independent of our reader: shift, mask, add one to the zero point."""
    leaves = ("qweight", "qzeros", "scales", "g_idx")
    weight, zeros, scales, g_idx = (checkpoint.tensor(f"{module}.{leaf}") for leaf in leaves)

    def unpacked(row):
        stream = int.from_bytes(row.astype("<i4").tobytes(), "little")
        return [stream >> bits * i & 2**bits - 1 for i in range(32 * len(row) // bits)]

    numbers = np.array([unpacked(column) for column in weight.T], np.float64)
    zero = np.array([unpacked(row) for row in zeros], np.float64) + 1
    return (numbers - zero[g_idx].T) * scales.astype(np.float64)[g_idx].T


@pytest.mark.parametrize(("bits", "size"), [(2, 32), (3, 32), (4, 32), (4, -1), (8, 16)])
def test_numbers_are_the_nearest(bits, size, tmp_path, capsys):
    config, tensors = random_llama()
    plain, out = tmp_path / "plain", tmp_path / "out"
    plain.mkdir()
    tensors["model.layers.0.mlp.up_proj.weight"][3] = 0
    write_folder(plain, config, tensors)
    options = ["--format=gptq", "--method=rtn", f"--bits={bits}", f"--group-size={size}"]
    if bits == 3:  # 16 rows of k and v do not fill whole words
        assert main(["quantize", str(plain), str(out), *options]) == 2
        assert "does not fill whole 32-bit words of 3 bits" in capsys.readouterr().err
        return
    assert main(["quantize", str(plain), str(out), *options]) == 0
    assert f"14 layers of {bits} bits rounded to nearest" in capsys.readouterr().out
    checkpoint = SafetensorsCheckpoint.open(out)
    assert GPTQScheme.matches(checkpoint)
    scheme = GPTQScheme.from_checkpoint(checkpoint)
    for name, matrix in tensors.items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj"):
            np.testing.assert_array_equal(checkpoint.tensor(name), matrix)
            continue
        assert scheme.rule(checkpoint, module, *matrix.shape)
        group = matrix.shape[1] if size < 0 else size
        with np.errstate(invalid="ignore"):
            wanted = np.nan_to_num(nearest(matrix, bits, group))
        got = dequantised(scheme.weight(checkpoint, module, *matrix.shape))
        assert (
            ~np.isclose(got, wanted, rtol=1e-6, atol=1e-7)
        ).mean() < 1e-3  # what lies in the middle may go either way
        np.testing.assert_allclose(by_the_layout(checkpoint, module, bits), got, rtol=1e-6, atol=1e-7)
    declared = json.loads((out / "config.json").read_text())["quantization_config"]
    assert declared["meta"] == {"quantizer": ["modulm: rounding to nearest"]}


def test_groups_must_divide(tmp_path, capsys):
    plain = write_folder(tmp_path, *random_llama())
    out = tmp_path / "out"
    assert main(["quantize", str(plain), str(out), "--format=gptq", "--method=rtn"]) == 2
    assert "--group-size=128 does not divide the 32 inputs of layer 'model.layers.0" in capsys.readouterr().err
    assert not out.exists()


def test_by_the_library_or_not_at_all(tmp_path, capsys, monkeypatch):
    """What is asked for is made by gptqmodel or refused: rounding to nearest never stands in for it unasked."""
    asked = []
    monkeypatch.setattr("modulm.interfaces.quantizing.find_spec", asked.append)
    plain = write_folder(tmp_path, *random_llama())
    assert main(["quantize", str(plain), str(tmp_path / "out"), "--format=gptq"]) == 2
    assert "pip install gptqmodel. Without it, --method=rtn" in capsys.readouterr().err
    assert asked == ["gptqmodel"]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_words_undo_codes(bits):
    numbers = np.random.default_rng(bits).integers(0, 2**bits, (700, 96)).astype(np.uint8)
    np.testing.assert_array_equal(codes(words(numbers, bits), bits), numbers)
