"""Checkpoints of plain floats made FP8 while they load: `fp8_per_tensor`, `fp8_per_channel`, `fp8_per_block`, `mxfp8`.

Each weight is divided by the scale that brings its largest number to the largest of e4m3, 448, and rounded to the
nearest: nothing is calibrated, and nothing searched. MXFP8 has powers of two instead (OCP Microscaling Formats 1.0,
section 6.3). Knows layers by their names alone.
"""

from typing import TYPE_CHECKING, Any, ClassVar

import ml_dtypes
import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import expect
from modulm.interfaces.quantization import Dense, Float8, QuantizationScheme, Weight, is_inner
from modulm.interfaces.quantization_config import quantization_config
from modulm.interfaces.support import Accepted, Rejected, Support

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_FLOATS = ("float32", "bfloat16", "float16")
_LARGEST = 448.0
_TOP, _MX_BIAS = 8, 127
_ROWS_AT_ONCE = 1024


def can_quantize(checkpoint: "Checkpoint") -> Support:
    """Say whether a checkpoint is one of plain floats."""
    method = quantization_config(checkpoint).method
    if method is not None:
        return Rejected(f"the checkpoint is already quantized ({method})")
    if any(
        checkpoint.info(name).dtype not in _FLOATS for name in checkpoint.tensor_names() if name.endswith(".weight")
    ):
        return Rejected("the checkpoint has weights that are no plain floats")
    return Accepted("8-bit floats, rounded to nearest while it loads")


class OnlineFP8(QuantizationScheme):
    """Base of all: `block` says how many rows and columns share a scale, 0 for all of them."""

    block: ClassVar[tuple[int, int]]
    powers_of_two: ClassVar[bool] = False

    @classmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Reject every checkpoint: none is stored so."""
        return Rejected("it quantizes plain checkpoints when it is asked for by name, and none is stored so")

    @classmethod
    def quantizes(cls, checkpoint: "Checkpoint") -> Support:
        """See base class."""
        return can_quantize(checkpoint)

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "OnlineFP8":
        """See base class."""
        return cls()

    def rule(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> str | None:
        """See base class."""
        if not is_inner(module):
            return None
        name = f"{module}.weight"
        expect(checkpoint, name, (out_features, in_features), _FLOATS, who=f"layer {module!r}, to be made {self.name},")
        self._check(in_features, f"Tensor {name!r} in {checkpoint.path}")
        return self.name

    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight | None:
        """See base class. `CheckpointError` where a number is NaN or infinite."""
        if self.rule(checkpoint, module, out_features, in_features) is None:
            return None
        name = f"{module}.weight"
        return self._rounded(checkpoint.tensor(name), f"Tensor {name!r} in {checkpoint.path}")

    def slice(self, name: str, weight: Dense) -> Weight:
        """See base class."""
        return self._rounded(weight.data, f"Tensor {name!r}")

    def _rounded(self, numbers: np.ndarray, what: str) -> Float8:
        self._check(numbers.shape[1], what)
        return rounded(numbers, self.block, what, powers_of_two=self.powers_of_two)

    def _check(self, in_features: int, what: str) -> None:
        if self.powers_of_two and in_features % self.block[1]:
            raise CheckpointError(f"{what} has rows of {in_features}, which {self.name}'s groups of 32 do not divide.")

    def describe(self) -> dict[str, Any]:
        """Return how weights are made."""
        return {"weights": f"{self.name}, rounded to nearest while loading", "activations": "kept as floats"}


class PerTensor(OnlineFP8):
    """One scale for each weight."""

    name: ClassVar[str] = "fp8_per_tensor"
    block: ClassVar[tuple[int, int]] = (0, 0)


class PerChannel(OnlineFP8):
    """One scale for each output."""

    name: ClassVar[str] = "fp8_per_channel"
    block: ClassVar[tuple[int, int]] = (1, 0)


class PerBlock(OnlineFP8):
    """One scale for each 128 x 128 numbers; blocks at the edges may be smaller."""

    name: ClassVar[str] = "fp8_per_block"
    block: ClassVar[tuple[int, int]] = (128, 128)


class MXFP8(OnlineFP8):
    """One power of two for 32 inputs, which brings the largest to 256 or more; what is then above 448 becomes 448."""

    name: ClassVar[str] = "mxfp8"
    block: ClassVar[tuple[int, int]] = (1, 32)
    powers_of_two: ClassVar[bool] = True


def rounded(numbers: np.ndarray, block: tuple[int, int], what: str, *, powers_of_two: bool = False) -> Float8:
    """Return floats [out_features, in_features] as e4m3 with float32 scales.

    Args:
        numbers: Of any floating-point type.
        block: Rows and columns that share a scale; 0 for all.
        what: The tensor, for messages.
        powers_of_two: Whether scales are those of microscaling.

    Raises:
        CheckpointError: A number is not finite.
    """
    rows, columns = numbers.shape
    high, wide = block[0] or rows, block[1] or columns
    largest = _largest(numbers, high, wide)
    if not np.isfinite(largest).all():
        raise CheckpointError(f"{what} holds a number that is NaN or infinite, which cannot be quantized.")
    whole = largest / np.float32(_LARGEST)
    if powers_of_two:
        exponents = np.frexp(largest)[1] - 1 - _TOP  # of the largest number, less that of the largest power of two
        whole = np.ldexp(np.float32(1), np.clip(exponents, -_MX_BIAS, None))
    scales = np.where(largest > 0, whole, np.float32(1)).astype(np.float32)
    scales[scales == 0] = np.finfo(np.float32).tiny  # of numbers that are all but zero
    data = np.empty((rows, columns), ml_dtypes.float8_e4m3fn)
    for start in range(0, rows, _ROWS_AT_ONCE):  # few at once: no second copy of the weight in float32
        part = numbers[start : start + _ROWS_AT_ONCE].astype(np.float32)
        spread = scales[np.arange(start, start + len(part)) // high].repeat(wide, axis=1)[:, :columns]
        data[start : start + len(part)] = np.clip(part / spread, -_LARGEST, _LARGEST).astype(data.dtype)
    return Float8(out_features=rows, in_features=columns, data=data, scales=scales, block=(high, wide))


def _largest(numbers: np.ndarray, high: int, wide: int) -> np.ndarray:
    """Return the largest magnitude of each block, float32 [blocks down, blocks across]; NaN where one is in it."""
    rows, columns = numbers.shape
    by_row = np.empty((rows, -(-columns // wide)), np.float32)
    for start in range(0, rows, _ROWS_AT_ONCE):
        part = np.abs(numbers[start : start + _ROWS_AT_ONCE].astype(np.float32))
        by_row[start : start + len(part)] = np.maximum.reduceat(part, np.arange(0, columns, wide), axis=1)
    return np.maximum.reduceat(by_row, np.arange(0, rows, high), axis=0)
