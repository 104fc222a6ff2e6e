"""Layers of plain numbers -> GPTQ's tensors by rounding to nearest: the layout without the method.

Nothing is calibrated. Symmetric, version 1 of zero points, as most readers know it. Knows one matrix and the
declaration; `bitstream.py` packs.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modulm.errors import ConfigError
from modulm.interfaces.quantizing import Wish, write_layers
from modulm_quant_gptq.bitstream import words
from modulm_quant_gptq.rules import BITS

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_SMALLEST = np.float16(2.0**-24)
_ROWS_AT_ONCE = 512


def quantize(checkpoint: "Checkpoint", out: Path, wish: Wish) -> str:
    """Write the checkpoint; see `QuantizationScheme.quantize`."""
    wish.takes("method", "bits", "group_size")
    bits, size = wish.one_of("bits", BITS, 4), wish.inputs_per_scale

    def declaration(ignored: list[str]) -> dict[str, Any]:
        keys = {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": True, "desc_act": False}
        plain: dict[str, Any] = {rf"-:{re.escape(name)}$": {} for name in ignored if name != "lm_head"}
        keys |= {"checkpoint_format": "gptq", "lm_head": False, "meta": {"quantizer": ["modulm: rounding to nearest"]}}
        return keys | ({"dynamic": plain} if plain else {})

    count = write_layers(checkpoint, out, lambda module, matrix: layer(module, matrix, bits, size), declaration)
    groups = f"groups of {size}" if size > 0 else "one group a row"
    return f"{count} layers of {bits} bits rounded to nearest, {groups}, nothing calibrated"


def layer(module: str, matrix: np.ndarray, bits: int, group_size: int) -> dict[str, np.ndarray]:
    """Return a layer's tensors. Raises `ConfigError` where groups do not divide it or do not fill whole words."""
    rows, width = matrix.shape
    size = width if group_size == -1 else group_size
    if size < 1 or width % size:
        divisors = [one for one in (32, 64, 128, 256) if width % one == 0]
        raise ConfigError(
            f"--group-size={group_size} does not divide the {width} inputs of layer {module!r}. Take one of "
            f"{', '.join(map(str, [*divisors, -1]))}; -1 is a group a row."
        )
    if width * bits % 32 or rows * bits % 32:
        raise ConfigError(
            f"Layer {module!r} of {rows} x {width} does not fill whole 32-bit words of {bits} bits, which GPTQ needs. "
            "Take another number of bits or another format, such as int8."
        )
    codes, scales = np.empty((rows, width), np.uint8), np.empty((rows, width // size), np.float16)
    for start in range(0, rows, _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        codes[part], scales[part] = _nearest(matrix[part].astype(np.float32), bits, size)
    zeros = np.full((width // size, rows), 2 ** (bits - 1) - 1, np.uint8)  # stored less one
    g_idx = np.arange(width, dtype=np.int32) // size
    return {"qweight": words(codes, bits).T, "qzeros": words(zeros, bits), "scales": scales.T, "g_idx": g_idx}


def _nearest(numbers: np.ndarray, bits: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return codes, and scales [rows, groups] such that the largest number of a group is within half a step."""
    groups = numbers.reshape(len(numbers), -1, size)
    scales = np.abs(groups).max(-1) / (2 ** (bits - 1) - 0.5)
    halves = np.maximum(scales.astype(np.float16), _SMALLEST)
    codes = np.rint(groups / halves.astype(np.float32)[..., None]) + 2 ** (bits - 1)
    return codes.clip(0, 2**bits - 1).astype(np.uint8).reshape(numbers.shape), halves
