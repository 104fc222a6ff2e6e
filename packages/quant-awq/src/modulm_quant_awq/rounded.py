"""Layers of plain numbers -> AWQ's tensors by rounding to nearest: the layout "gemm" without the method.

Nothing is calibrated, and no scales are moved into other layers, which is what AWQ does. Knows one matrix
and the declaration; `words.py` packs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modulm.errors import ConfigError
from modulm.interfaces.quantizing import Wish, write_layers
from modulm_quant_awq.words import packed

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_SMALLEST = np.float16(2.0**-24)
_ROWS_AT_ONCE = 512


def quantize(checkpoint: "Checkpoint", out: Path, wish: Wish) -> str:
    """Write the checkpoint; see `QuantizationScheme.quantize`."""
    wish.takes("method", "bits", "group_size")
    wish.one_of("bits", (4,), 4)
    size = wish.inputs_per_scale

    def declaration(ignored: list[str]) -> dict[str, Any]:
        keys = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm"}
        return keys | {"modules_to_not_convert": ignored or None}

    count = write_layers(checkpoint, out, lambda module, matrix: layer(module, matrix, size), declaration)
    groups = f"groups of {size}" if size > 0 else "one group a row"
    return f"{count} layers of 4 bits rounded to nearest, {groups}, nothing calibrated"


def layer(module: str, matrix: np.ndarray, group_size: int) -> dict[str, np.ndarray]:
    """Return a layer's tensors. Raises `ConfigError` where groups do not divide it or do not fill whole words."""
    rows, width = matrix.shape
    size = width if group_size == -1 else group_size
    if size < 1 or width % size or rows % 8 or width % 2:
        divisors = [one for one in (32, 64, 128, 256) if width % one == 0]
        raise ConfigError(
            f"Layer {module!r} of {rows} x {width} cannot be AWQ with --group-size={group_size}: outputs are packed by "
            f"eight, and groups must divide inputs. Groups may be {', '.join(map(str, [*divisors, -1]))}; -1 is a row."
        )
    codes, zeros = np.empty((rows, width), np.uint8), np.empty((rows, width // size), np.uint8)
    scales = np.empty(zeros.shape, np.float16)
    for start in range(0, rows, _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        codes[part], zeros[part], scales[part] = _nearest(matrix[part].astype(np.float32), size)
    return {"qweight": packed(codes.T), "qzeros": packed(zeros.T), "scales": scales.T}


def _nearest(numbers: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes, and zero points and scales [rows, groups] such that a group's range, and 0, lie within 16 steps."""
    groups = numbers.reshape(len(numbers), -1, size)
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    halves = np.maximum(((high - low) / 15).astype(np.float16), _SMALLEST)
    steps = halves.astype(np.float32)
    zeros = np.rint(-low / steps).clip(0, 15)
    codes = (np.rint(groups / steps[..., None]) + zeros[..., None]).clip(0, 15)
    return codes.astype(np.uint8).reshape(numbers.shape), zeros.astype(np.uint8), halves
