"""Small floats with scales: `float-quantized` and `mxfp8-quantized` -> `Float8`, FP4 in pairs -> 4-bit kinds.

NVFP4's two levels of scales become one: the 16 values are divided by the outer, so that the inner stay in 16 bits.
"""

from typing import Any, ClassVar

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import finite
from modulm.interfaces.quantization import BlockFloat4, Codebook4, Float8, Weight
from modulm_quant_compressed_tensors.arguments import MXFP8, NVFP4
from modulm_quant_compressed_tensors.layer import FLOATS, SCALE, ZERO_POINT, Layer

_PACKED, _OUTER = "weight_packed", "weight_global_scale"
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_NO_EXPONENT = 255


class Floats8(Layer):
    """Numbers of e4m3, a byte each."""

    suffixes: ClassVar[tuple[str, ...]] = ("weight", ZERO_POINT)

    def check(self) -> None:
        """See base class."""
        self.expect("weight", self.shape, "float8_e4m3fn", "float8_e5m2")
        if self.arguments.format == MXFP8:
            self.expect_scales("uint8")
            _check_exponents(self)
        else:
            self.expect_scales(*FLOATS)

    def weight(self) -> Weight:
        """See base class."""
        rows, columns = self.shape
        scales = self.scales()
        if self.arguments.format == MXFP8:
            scales = np.ldexp(np.float32(1), self.tensor(SCALE).astype(np.int32) - 127)
        high, wide = self.arguments.block
        if self.arguments.strategy != "block":
            high, wide = (rows if len(scales) == 1 else 1), self.arguments.group_size or columns
        data = self.tensor("weight")
        return Float8(out_features=rows, in_features=columns, data=data, scales=scales, block=(high, wide))


class Floats4(Layer):
    """Numbers of e2m1, the first of two in the low half of a byte."""

    suffixes: ClassVar[tuple[str, ...]] = (_PACKED, _OUTER)

    def check(self) -> None:
        """See base class."""
        self.expect(_PACKED, (self.shape[0], self.shape[1] // 2), "uint8")
        if self.arguments.format != NVFP4:
            self.expect_scales("uint8")
            _check_exponents(self)
            return
        self.expect_scales("float8_e4m3fn")
        self.expect(_OUTER, (1,), "float32")
        names = [f"{self.module}.{suffix}" for suffix in (SCALE, _OUTER)]
        if not np.isfinite(self.tensor(SCALE).astype(np.float32)).all() or not finite(self.checkpoint, names[1]).all():
            raise CheckpointError(
                f"Tensors {names[0]!r} and {names[1]!r} in {self.checkpoint.path} hold a scale that is NaN, or divide "
                "by zero. The file is damaged, or was badly quantized: fetch or make it again."
            )

    def weight(self) -> Weight:
        """See base class."""
        rows, columns = self.shape
        common: dict[str, Any] = {"out_features": rows, "in_features": columns, "codes": self.tensor(_PACKED)}
        common["group_size"] = self.arguments.group_size
        if self.arguments.format != NVFP4:
            return BlockFloat4(**common, scales=self.tensor(SCALE))
        return Codebook4(**common, scales=self.tensor(SCALE).astype(np.float16), codebook=_E2M1 / self.tensor(_OUTER))


def _check_exponents(layer: Layer) -> None:
    """Refuse scales that are powers of two where one is not a number."""
    if (layer.tensor(SCALE) == _NO_EXPONENT).any():
        raise CheckpointError(
            f"Tensor '{layer.module}.{SCALE}' in {layer.checkpoint.path} has scales that are NaN (255). The file is "
            "damaged, or was badly quantized: fetch or make it again."
        )
