"""What `modulm quantize --format awq --method rtn` writes: each number the nearest there is, in the layout "gemm"."""

import json

import numpy as np
import pytest

from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.cli import main
from modulm_quant_awq.scheme import AWQScheme
from modulm_testkit.checkpoints import random_llama, write_folder
from modulm_testkit.oracles.weights import dequantised

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def by_the_layout(checkpoint, module):
    """AutoAWQ's layout by its definition: nibble k of a word is output ORDER[k] of eight; groups lie along inputs."""
    words, zeros, scales = (checkpoint.tensor(f"{module}.{leaf}") for leaf in ("qweight", "qzeros", "scales"))

    def unpacked(packed):
        out = np.empty((*packed.shape, 8))
        for nibble, place in enumerate(ORDER):
            out[..., place] = packed.astype(np.int64) >> 4 * nibble & 15
        return out.reshape(len(packed), -1)

    size = len(words) // len(scales)
    zero, scale = (part.repeat(size, axis=0) for part in (unpacked(zeros), scales.astype(np.float64)))
    return ((unpacked(words) - zero) * scale).T


@pytest.mark.parametrize("size", [16, 32, -1])
def test_numbers_are_the_nearest(size, tmp_path, capsys):
    config, tensors = random_llama()
    plain, out = tmp_path / "plain", tmp_path / "out"
    plain.mkdir()
    up = tensors["model.layers.0.mlp.up_proj.weight"]
    up[3], up[4], up[5] = 0, np.abs(up[4]) + 1, -np.abs(up[5])  # no range; a range without 0; nothing above it
    write_folder(plain, config, tensors)
    assert main(["quantize", str(plain), str(out), "--format=awq", "--method=rtn", f"--group-size={size}"]) == 0
    assert "14 layers of 4 bits rounded to nearest" in capsys.readouterr().out
    checkpoint = SafetensorsCheckpoint.open(out)
    assert AWQScheme.matches(checkpoint)
    scheme = AWQScheme.from_checkpoint(checkpoint)
    for name, matrix in tensors.items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj"):
            np.testing.assert_array_equal(checkpoint.tensor(name), matrix)
            continue
        assert scheme.rule(checkpoint, module, *matrix.shape)
        got = dequantised(scheme.weight(checkpoint, module, *matrix.shape))
        np.testing.assert_allclose(got, by_the_layout(checkpoint, module), rtol=1e-6, atol=1e-7)
        groups = matrix.astype(np.float64).reshape(len(matrix), -1, matrix.shape[1] if size < 0 else size)
        low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
        off = np.abs(got.reshape(groups.shape) - groups).max(-1)
        assert (off <= (high - low) / 15 * 1.01).all()  # half a step, and half of one that the zero point is off
        assert np.sqrt(((got - matrix) ** 2).mean()) < ((high - low) / 15).mean() / 3  # evenly within half: 0.29 steps
    declared = json.loads((out / "config.json").read_text())["quantization_config"]
    assert declared["modules_to_not_convert"] == ["lm_head"]


def test_groups_must_divide(tmp_path, capsys):
    plain = write_folder(tmp_path, *random_llama())
    assert main(["quantize", str(plain), str(tmp_path / "out"), "--format=awq", "--method=rtn"]) == 2
    assert "of 32 x 32 cannot be AWQ with --group-size=128" in capsys.readouterr().err
    assert main(["quantize", str(plain), str(tmp_path / "out"), "--format=awq", "--method=rtn", "--bits=8"]) == 2
    assert "--bits=8 is not to be had for --format='awq'. There is: 4." in capsys.readouterr().err


def test_by_the_library_or_not_at_all(tmp_path, capsys, monkeypatch):
    """What is asked for is made by auto-round or refused: rounding to nearest never stands in for it unasked."""
    asked = []
    monkeypatch.setattr("modulm.interfaces.quantizing.find_spec", asked.append)
    plain = write_folder(tmp_path, *random_llama())
    assert main(["quantize", str(plain), str(tmp_path / "out"), "--format=awq"]) == 2
    assert "pip install auto-round. Without it, --method=rtn" in capsys.readouterr().err
    assert asked == ["auto_round"]
