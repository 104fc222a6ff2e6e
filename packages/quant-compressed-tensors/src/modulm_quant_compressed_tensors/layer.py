"""What all formats have in common: a layer's tensors, found and checked before any is decoded.

Knows names, shapes and types; `packed.py`, `bytes.py` and `fp4.py` know what codes and scales mean.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import LayerTensors, expect, finite
from modulm.interfaces.quantization import Weight
from modulm_quant_compressed_tensors.arguments import Arguments

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

SCALE, ZERO_POINT = "weight_scale", "weight_zero_point"
FLOATS = ("float16", "bfloat16", "float32")
_ACTIVATIONS = ("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point")
"""Of activations that the checkpoint means to be rounded: here they stay what they are."""


class Layer(ABC):
    """A layer that was checked.

    Args:
        tensors: Names of the checkpoint's tensors by layer.
        checkpoint: Where they are.
        module: The layer.
        arguments: How it is stored.
        shape: What the model needs, out_features and in_features.

    Raises:
        CheckpointError: Naming the tensor that is missing, has no place, does not fit, or has scales without a value.
    """

    suffixes: ClassVar[tuple[str, ...]]
    """Tensors that such a layer may have, beside `weight_scale` and what all layers may have."""

    def __init__(
        self,
        tensors: LayerTensors,
        checkpoint: "Checkpoint",
        module: str,
        arguments: Arguments,
        shape: tuple[int, int],
    ) -> None:
        self.checkpoint = checkpoint
        self.module = module
        self.arguments = arguments
        self.shape = shape
        self.found = set(tensors.of(module))
        self._who = f"a layer of {shape[0]} x {shape[1]} ({arguments})"
        if arguments.group_size and shape[1] % arguments.group_size:
            raise CheckpointError(
                f"group_size={arguments.group_size!r} of layer {module!r} in {checkpoint.path} does not divide its "
                f"{shape[1]} inputs. Only whole groups can be read: quantize the model with a group size that does."
            )
        self.check()
        for suffix in sorted(self.found.intersection(_ACTIVATIONS)):
            if suffix.endswith("scale"):
                finite(checkpoint, f"{module}.{suffix}")
        tensors.only(module, {"bias", SCALE, *_ACTIVATIONS, *self.suffixes})

    @abstractmethod
    def check(self) -> None:
        """Check the tensors that hold codes, scales and zero points."""

    @abstractmethod
    def weight(self) -> Weight:
        """Return the weight."""

    def expect(self, suffix: str, shape: tuple[int | None, ...], *dtypes: str) -> None:
        """Check one of the layer's tensors."""
        expect(self.checkpoint, f"{self.module}.{suffix}", shape, dtypes, who=self._who)

    def expect_scales(self, *dtypes: str) -> None:
        """Check shape and type of the scales, and their values if they are floats."""
        shape: tuple[int, ...] = self.scale_shape
        if SCALE in self.found and self.arguments.strategy in ("tensor", "channel"):  # (n, 1) and (n) are both written
            stored = self.checkpoint.info(f"{self.module}.{SCALE}").shape
            shape = stored if stored in (shape, (), shape[:1]) and np.prod(stored) == shape[0] else shape
        self.expect(SCALE, shape, *dtypes)
        if dtypes[0] in FLOATS:
            finite(self.checkpoint, f"{self.module}.{SCALE}")

    @property
    def scale_shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix of scales."""
        rows, columns = self.shape
        high, wide = self.arguments.block
        by_strategy = {"tensor": (1, 1), "channel": (rows, 1)}
        if self.arguments.strategy == "block":
            return -(-rows // high), -(-columns // wide)
        return by_strategy.get(self.arguments.strategy) or (rows, columns // self.arguments.group_size)

    def tensor(self, suffix: str) -> np.ndarray:
        """Return one of the layer's tensors."""
        return self.checkpoint.tensor(f"{self.module}.{suffix}")

    def scales(self) -> np.ndarray:
        """Return the scales as a matrix, float16 or float32."""
        scales = self.tensor(SCALE).reshape(self.scale_shape)
        return scales if scales.dtype.name == "float16" else scales.astype(np.float32)
