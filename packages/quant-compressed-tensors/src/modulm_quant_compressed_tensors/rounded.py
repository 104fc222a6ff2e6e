"""Layers of plain numbers -> int8 or FP8 as compressed-tensors stores them: rounded to nearest, a scale per row.

Nothing is calibrated. Knows one matrix and the declaration; `interfaces/quantizing.py` writes files.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from modulm.interfaces.quantizing import Wish, write_layers

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_KINDS = {"int8": ("int", "int-quantized", 127.0), "fp8": ("float", "float-quantized", 448.0)}
"""Format -> type, compressed-tensors' name, largest number."""
FORMATS = tuple(_KINDS)
_ROWS_AT_ONCE = 512


def quantize(checkpoint: "Checkpoint", out: Path, wish: Wish) -> str:
    """Write the checkpoint; see `QuantizationScheme.quantize`."""
    wish.takes("method")
    wish.one_of("method", ("rtn",), "rtn")
    kind, stored, largest = _KINDS[wish.format]

    def declaration(ignored: list[str]) -> dict[str, Any]:
        weights = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "channel", "dynamic": False}
        inputs = {**weights, "strategy": "token", "dynamic": True}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": stored}
        common = {"quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": ignored}
        return {**common, "format": stored, "config_groups": {"group_0": group}}

    count = write_layers(checkpoint, out, lambda _, matrix: _rounded(matrix, kind, largest), declaration)
    return f"{count} layers rounded to nearest, a scale per row, nothing calibrated"


def _rounded(numbers: np.ndarray, kind: str, largest: float) -> dict[str, np.ndarray]:
    codes = np.empty(numbers.shape, np.int8 if kind == "int" else ml_dtypes.float8_e4m3fn)
    scales = np.empty((len(numbers), 1), np.float32)
    for start in range(0, len(numbers), _ROWS_AT_ONCE):  # few at once: no second copy in float32
        part = slice(start, start + _ROWS_AT_ONCE)
        wide = numbers[part].astype(np.float32)
        most = np.abs(wide).max(axis=1, keepdims=True, initial=0)
        scales[part] = np.where(most > 0, most / np.float32(largest), 1)
        wide /= scales[part]
        codes[part] = np.rint(wide) if kind == "int" else np.clip(wide, -largest, largest)
    return {"weight": codes, "weight_scale": scales}
