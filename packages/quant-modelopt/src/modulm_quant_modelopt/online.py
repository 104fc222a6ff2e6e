"""`nvfp4_per_token`: checkpoints of plain floats whose weights are made NVFP4 while they load.

As ModelOpt makes them without calibration: a scale for the tensor that brings the largest group scale to 448, an e4m3
scale for 16 inputs that brings the largest of them to 6, and the nearest of e2m1. What is one matrix in a model (query,
key and value; gate and up) has one scale for all its tensors. Activations, which the name means to have a scale for
each token, stay floats. Knows layers by their names alone.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import ml_dtypes
import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import expect
from modulm.interfaces.quantization import Codebook4, Dense, QuantizationScheme, Weight, is_inner
from modulm.interfaces.quantization_config import quantization_config
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_quant_modelopt.algorithms import FP4

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_FLOATS = ("float32", "bfloat16", "float16")
_GROUP = 16
_MOST_SCALE, _MOST_CODE = 448.0, 6.0
_ROWS_AT_ONCE = 512
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class NVFP4PerToken(QuantizationScheme):
    """Every layer but embeddings, the output layer and what chooses experts."""

    name: ClassVar[str] = "nvfp4_per_token"

    @classmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Reject every checkpoint: those that are stored in NVFP4 have other names."""
        return Rejected("it makes NVFP4 of plain checkpoints when it is asked for by name, and none is stored so")

    @classmethod
    def quantizes(cls, checkpoint: "Checkpoint") -> Support:
        """See base class."""
        method = quantization_config(checkpoint).method
        if method is not None:
            return Rejected(f"the checkpoint is already quantized ({method})")
        return Accepted("NVFP4, rounded to nearest while it loads")

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "NVFP4PerToken":
        """See base class."""
        return cls()

    def rule(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> str | None:
        """See base class."""
        if not is_inner(module):
            return None
        who = f"layer {module!r}, to be made NVFP4,"
        expect(checkpoint, f"{module}.weight", (out_features, in_features), _FLOATS, who=who)
        _check(in_features, f"Tensor {f'{module}.weight'!r} in {checkpoint.path}")
        return self.name

    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight | None:
        """See base class. `CheckpointError` where a number is NaN or infinite."""
        if self.rule(checkpoint, module, out_features, in_features) is None:
            return None
        numbers, what = checkpoint.tensor(f"{module}.weight"), f"Tensor {f'{module}.weight'!r} in {checkpoint.path}"
        return rounded(numbers, what, [checkpoint.tensor(name) for name in _beside(checkpoint, module)])

    def slice(self, name: str, weight: Dense) -> Weight:
        """See base class."""
        return rounded(weight.data, f"Tensor {name!r}")

    def describe(self) -> dict[str, Any]:
        """Return how weights are made."""
        return {"weights": "NVFP4, rounded to nearest while loading", "activations": "kept as floats"}


def _beside(checkpoint: "Checkpoint", module: str) -> list[str]:
    """Return the weights that share a scale with the one of `module`, itself left out."""
    parent, _, last = module.rpartition(".")
    names = set(checkpoint.tensor_names())
    beside = [f"{parent}.{other}.weight" for group in _TOGETHER if last in group for other in group if other != last]
    return [name for name in beside if name in names]


def rounded(numbers: np.ndarray, what: str, beside: Sequence[np.ndarray] = ()) -> Codebook4:
    """Return floats [out_features, in_features] in NVFP4, with the tensor's scale that `beside` has too.

    Raises `CheckpointError` about `what` on NaN and odd rows.
    """
    rows, columns = numbers.shape
    _check(columns, what)
    parts = range(0, rows, _ROWS_AT_ONCE)
    grouped = (rows, columns // _GROUP)
    most = np.empty(grouped, np.float32)
    for part in (slice(start, start + _ROWS_AT_ONCE) for start in parts):
        most[part] = np.abs(numbers[part].astype(np.float32)).reshape(-1, grouped[1], _GROUP).max(-1)
    largest = most.max(initial=0)
    if not np.isfinite(largest):
        raise CheckpointError(f"{what} holds a number that is NaN or infinite, which cannot be quantized.")
    largest = max(largest, *filter(np.isfinite, map(_largest, beside)), np.float32(0))
    tensor = np.maximum(largest / np.float32(_MOST_SCALE * _MOST_CODE), np.finfo(np.float32).tiny)
    scales = (most / np.float32(_MOST_CODE) / tensor).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    codes = np.empty((rows, columns // 2), np.uint8)
    for part in (slice(start, start + _ROWS_AT_ONCE) for start in parts):
        factors = np.where(scales[part] > 0, scales[part] * tensor, np.float32(np.inf)).repeat(_GROUP, axis=1)
        nearest = (numbers[part].astype(np.float32) / factors).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
        codes[part] = nearest[:, ::2] | nearest[:, 1::2] << 4
    return Codebook4(
        out_features=rows, in_features=columns, group_size=_GROUP, codes=codes, scales=scales.astype(np.float16),
        codebook=FP4 * tensor,
    )  # fmt: skip


def _largest(numbers: np.ndarray) -> np.float32:
    parts = (numbers[start : start + _ROWS_AT_ONCE] for start in range(0, len(numbers), _ROWS_AT_ONCE))
    return np.float32(max(np.abs(part.astype(np.float32)).max(initial=0) for part in parts))


def _check(columns: int, what: str) -> None:
    if columns % _GROUP:
        raise CheckpointError(f"{what} has rows of {columns}, which NVFP4's groups of {_GROUP} do not divide.")
