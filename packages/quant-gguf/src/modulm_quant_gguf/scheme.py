"""The `gguf` quantization: a tensor's raw rows -> the canonical `Weight` that holds exactly its values.

Knows which ggml type fits which kind; `layouts.py` takes blocks apart, `checkpoint.py` provides rows. Types that only
the `gguf` package knows become `Encoded` and are decoded by it, on the CPU.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.quantization import (
    Codebook4,
    Dense,
    Encoded,
    GroupedInt,
    QuantizationScheme,
    VectorCodebook,
    Weight,
)
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_quant_gguf import blocks, grid_blocks
from modulm_quant_gguf.checkpoint import GGUFCheckpoint
from modulm_quant_gguf.ggml_types import GGMLType
from modulm_quant_gguf.layouts import Layout, VectorLayout, unpack, unpack_vectors
from modulm_quant_gguf.values import float32

if TYPE_CHECKING:
    from pathlib import Path

    from modulm.interfaces.checkpoint import Checkpoint
    from modulm.interfaces.quantizing import Wish

_FLOATS = ("F32", "F16", "BF16", "F64")
_WRITTEN = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "f16", "bf16")
LAYOUTS: dict[str, Layout | VectorLayout] = {**blocks.LAYOUTS, **grid_blocks.LAYOUTS}
"""How each type that a canonical kind holds is taken apart."""


class GGUFScheme(QuantizationScheme):
    """Weights of a GGUF file, each in the type it is stored in."""

    name: ClassVar[str] = "gguf"
    writes: ClassVar[tuple[str, ...]] = tuple(f"gguf-{name}" for name in _WRITTEN)

    def __init__(self, types: dict[str, int]) -> None:
        self._types = types

    @classmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Accept checkpoints read by this package's reader."""
        if isinstance(checkpoint, GGUFCheckpoint):
            return Accepted()
        return Rejected(f"the checkpoint is {checkpoint.format}, not gguf")

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "GGUFScheme":
        """Make the scheme; counts types for `describe`."""
        return cls(dict(Counter(entry.type.name for entry in _own(checkpoint).header.tensors.values())))

    @classmethod
    def quantize(cls, checkpoint: "Checkpoint", out: "Path", wish: "Wish") -> str:
        """See base class: a file "model-q4_0.gguf"."""
        from modulm_quant_gguf.written import quantize

        return quantize(checkpoint, out, wish)

    def describe(self) -> dict[str, Any]:
        """Return how many tensors there are of each type."""
        return {"types": dict(self._types)}

    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight:
        """Return the weight of a linear or embedding layer: never None, as every type has a kind.

        Values equal gguf's dequantisation bit for bit when scale * code + minimum is computed in float32.
        Raises `CheckpointError` naming the tensor that is missing, has another shape, or a type without decoder.
        """
        own = _own(checkpoint)
        name = f"{module}.weight"
        source = own.source(name)
        entry = source.entry
        what = f"Tensor {entry.name!r} of {own.path}, {name!r},"
        if source.shape != (out_features, in_features):
            raise CheckpointError(
                f"{what} has shape {list(source.shape)}, but the model needs {[out_features, in_features]}."
            )
        if entry.type.name in _FLOATS:
            return Dense(out_features=out_features, in_features=in_features, data=own.tensor(name))
        return _quantized(own.rows(name), entry.type, in_features, what)


def _own(checkpoint: "Checkpoint") -> GGUFCheckpoint:
    if not isinstance(checkpoint, GGUFCheckpoint):
        raise CheckpointError(f"{checkpoint.path} is a {checkpoint.format} checkpoint; this scheme reads gguf only.")
    return checkpoint


def _quantized(rows: np.ndarray, kind: GGMLType, in_features: int, what: str) -> Weight:
    layout = LAYOUTS.get(kind.name)
    if layout is None:
        return _encoded(rows, kind, in_features, what)
    common: dict[str, Any] = {"out_features": len(rows), "in_features": in_features, "group_size": layout.group_size}
    if isinstance(layout, VectorLayout):
        codes, signs, scales = unpack_vectors(rows, kind, layout)
        return VectorCodebook(**common, codes=codes, signs=signs, scales=scales, codebook=layout.codebook(kind.name))
    codes, scales, minimums = unpack(rows, kind, layout)
    common |= {"codes": codes, "scales": scales}
    if layout.codebook is not None:
        return Codebook4(**common, codebook=np.array(layout.codebook, np.float32))
    assert minimums is not None
    return GroupedInt(**common, bits=layout.bits, minimums=minimums)


def _encoded(rows: np.ndarray, kind: GGMLType, in_features: int, what: str) -> Encoded:
    float32(np.zeros((1, kind.size), np.uint8), kind, what)  # refuses now what could not be decoded later

    def decode(raw: np.ndarray) -> np.ndarray:
        """Decode rows uint8 [n, bytes per row] to float32 [n, in_features]."""
        return float32(np.ascontiguousarray(raw), kind, what)

    return Encoded(
        out_features=len(rows), in_features=in_features, format=f"gguf {kind.name}", data=rows, decode=decode
    )
