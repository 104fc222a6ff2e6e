"""Checkpoints of plain floats made int8 while they load: `int8_per_channel_weight_only`, and `experts_int8`.

Each row is divided by the scale that brings its largest number to 127, and rounded to the nearest: nothing is
calibrated, and nothing searched. Knows layers by their names alone.
"""

import re
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import expect
from modulm.interfaces.quantization import ChannelInt8, Dense, QuantizationScheme, Weight, is_inner
from modulm.interfaces.support import Accepted, Rejected, Support

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_FLOATS = ("float32", "bfloat16", "float16")
_EXPERT = re.compile(r"(^|\.)experts\.")
_LARGEST = np.float32(127)
_NUMBERS_AT_ONCE = 1 << 18


class PerChannelInt8(QuantizationScheme):
    """All layers but embeddings, the output layer, and what chooses experts; one scale for each output."""

    name: ClassVar[str] = "int8_per_channel_weight_only"

    def __init__(self) -> None:
        self._num_layers = 0

    @classmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Reject every checkpoint: none is stored so."""
        return Rejected("it quantizes plain checkpoints when it is asked for by name, and none is stored so")

    @classmethod
    def quantizes(cls, checkpoint: "Checkpoint") -> Support:
        """Accept a checkpoint that has what is to be quantized."""
        return Accepted("int8, rounded to nearest while it loads")

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "PerChannelInt8":
        """See base class."""
        return cls()

    @classmethod
    def serves(cls, module: str) -> bool:
        """Say whether a layer, or a tensor that stacks some, is quantized."""
        return is_inner(module)

    def rule(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> str | None:
        """See base class."""
        if not self.serves(module):
            return None
        who = f"layer {module!r}, to be made int8,"
        expect(checkpoint, f"{module}.weight", (out_features, in_features), _FLOATS, who=who)
        return "int8, a scale per row"

    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight | None:
        """See base class. `CheckpointError` where a number is NaN or infinite."""
        if self.rule(checkpoint, module, out_features, in_features) is None:
            return None
        name = f"{module}.weight"
        self._num_layers += 1
        return rounded(checkpoint.tensor(name), f"Tensor {name!r} in {checkpoint.path}")

    def slice(self, name: str, weight: Dense) -> Weight:
        """See base class."""
        if not self.serves(name):
            return weight
        self._num_layers += 1
        return rounded(weight.data, f"Tensor {name!r}")

    def describe(self) -> dict[str, Any]:
        """Return how weights are made, and how many were so far."""
        return {"weights": "int8, a scale per row, rounded to nearest while loading", "layers": self._num_layers}


class ExpertsInt8(PerChannelInt8):
    """The experts of mixtures alone."""

    name: ClassVar[str] = "experts_int8"

    @classmethod
    def quantizes(cls, checkpoint: "Checkpoint") -> Support:
        """See base class."""
        if any(cls.serves(name) for name in checkpoint.tensor_names()):
            return super().quantizes(checkpoint)
        return Rejected("the model has no experts, so that nothing would be quantized")

    @classmethod
    def serves(cls, module: str) -> bool:
        """See base class."""
        return _EXPERT.search(module) is not None


def rounded(numbers: np.ndarray, what: str) -> ChannelInt8:
    """Return floats [out_features, in_features] as signed bytes, of a magnitude of at most 127.

    Raises `CheckpointError`, which begins with `what`, where a number is not finite.
    """
    rows, columns = numbers.shape
    codes, scales = np.empty((rows, columns), np.int8), np.empty(rows, np.float32)
    at_once = max(1, _NUMBERS_AT_ONCE // max(columns, 1))
    for start in range(0, rows, at_once):  # few at once: no second copy of the weight in float32
        part = numbers[start : start + at_once].astype(np.float32)
        scale = np.abs(part).max(axis=1, initial=0) / _LARGEST
        if not np.isfinite(scale).all():
            raise CheckpointError(f"{what} holds a number that is NaN or infinite, which cannot be quantized.")
        scales[start : start + at_once] = scale
        scale[scale == 0] = 1
        codes[start : start + at_once] = np.rint(part / scale[:, None])
    return ChannelInt8(out_features=rows, in_features=columns, codes=codes, scales=scales)
