"""FP8 layers as checkpoints hold them: `weight` in 8-bit floats, beside it the scales that it is multiplied by.

Finds and checks the tensors of a layer by name, type and shape, and makes `Float8` of them. Knows no declaration:
`scheme.py` reads that. Activations stay floats here, which is more exact than the 8 bits that some checkpoints mean
them to have; the scales that come for them are read and checked, and not used.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import LayerTensors, expect, finite
from modulm.interfaces.quantization import Float8

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

DTYPES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
"""What declarations call a type of 8 bits -> its name in `ml_dtypes`."""
SCALES = ("weight_scale_inv", "weight_scale")
"""Names of a layer's scales; both are factors, whatever the first one's name says."""
ACTIVATION_SCALES = ("input_scale", "activation_scale")
_CACHE_SCALES = ("k_scale", "v_scale", "q_scale", "kv_scale", "output_scale")
_OTHERS = ("weight", "bias", "input_scale_ub", *ACTIVATION_SCALES, *_CACHE_SCALES)
_SCALE_TYPES = ("float32", "bfloat16", "float16", "float8_e8m0fnu")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a declaration says of all quantized layers.

    Attributes:
        method: `quant_method`, for messages.
        dtypes: Types that weights may have.
        block: Rows and columns that share a scale; None: as many scales as there are rows, or one.
        by_row: Where there are no blocks, each row must have a scale.
        is_static: Each layer must bring a scale for its activations.
    """

    method: str
    dtypes: tuple[str, ...]
    block: tuple[int, int] | None = None
    by_row: bool = False
    is_static: bool = False


class StoredLayers:
    """The layers of one checkpoint, by name."""

    def __init__(self, checkpoint: "Checkpoint", layout: Layout) -> None:
        self._checkpoint = checkpoint
        self._layout = layout
        self._by_layer = LayerTensors(checkpoint)
        self._tensors: dict[str, set[str]] = {}
        for name in checkpoint.tensor_names():
            module, _, last = name.rpartition(".")
            self._tensors.setdefault(module, set()).add(last)

    def is_float8(self, module: str) -> bool:
        """Say whether the layer's weight is stored in 8-bit floats; False where there is none."""
        if "weight" not in self._tensors.get(module, ()):
            return False
        return self._checkpoint.info(f"{module}.weight").dtype in DTYPES.values()

    def with_scales(self) -> list[str]:
        """Return the layers that have scales for their weights."""
        return [module for module, lasts in self._tensors.items() if lasts.intersection(SCALES)]

    def with_any(self, lasts: Iterable[str]) -> list[str]:
        """Return the layers that have a tensor of one of these names."""
        wanted = set(lasts)
        return [module for module, found in self._tensors.items() if found & wanted]

    def has_scale(self, module: str) -> bool:
        """Say whether the layer has scales for its weight."""
        return bool(self._tensors.get(module, set()).intersection(SCALES))

    def block(self, module: str, out_features: int, in_features: int) -> tuple[int, int]:
        """Return how many rows and columns share a scale. Reads no weights.

        Raises:
            CheckpointError: A tensor of the layer is missing, is of another type or shape, or is one too many; or a
                scale for activations is no positive number.
        """
        who = f"layer {module!r}, stored as {self._layout.method} with {out_features} x {in_features} numbers,"
        expect(self._checkpoint, f"{module}.weight", (out_features, in_features), self._layout.dtypes, who=who)
        self._by_layer.only(module, (*SCALES, *_OTHERS))
        self._check_activations(module, who)
        return self._block(module, out_features, in_features, who)

    def weight(self, module: str, out_features: int, in_features: int) -> Float8:
        """Return the layer's weight; its numbers are a view on the file. Raises as `block` does, and on NaN scales."""
        high, wide = self.block(module, out_features, in_features)
        scales = finite(self._checkpoint, self._scale(module)).astype(np.float32)
        return Float8(
            out_features=out_features,
            in_features=in_features,
            data=self._checkpoint.tensor(f"{module}.weight"),
            scales=scales.reshape(-(-out_features // high), -(-in_features // wide)),
            block=(high, wide),
        )

    def _scale(self, module: str) -> str:
        found = [last for last in SCALES if last in self._tensors.get(module, ())]
        if len(found) != 1:
            what = "has both" if found else "has neither"
            raise CheckpointError(
                f"Layer {module!r} in {self._checkpoint.path} {what} {f'{module}.{SCALES[0]}'!r} and "
                f"{f'{module}.{SCALES[1]}'!r}, but its 8-bit floats need one of them to be multiplied by. Check that "
                "the checkpoint is complete."
            )
        return f"{module}.{found[0]}"

    def _block(self, module: str, out_features: int, in_features: int, who: str) -> tuple[int, int]:
        name = self._scale(module)
        shape = self._checkpoint.info(name).shape
        whole = out_features, in_features
        layout = self._layout.block
        if layout is not None:
            grid = tuple(-(-size // side) for size, side in zip(whole, layout, strict=True))
            one_for_all = grid == (1, 1) and shape in ((), (1,))
            expect(
                self._checkpoint, name, shape if one_for_all else grid, _SCALE_TYPES, who=f"{who} in blocks {layout}"
            )
            return layout if not one_for_all else whole
        rows = ((out_features,), (out_features, 1))
        one = () if self._layout.by_row else ((), (1,), (1, 1))
        wanted = shape if shape in (*one, *rows) else rows[1]
        expect(
            self._checkpoint,
            name,
            wanted,
            _SCALE_TYPES,
            who=f"{who} with {'' if self._layout.by_row else 'one scale, or '}one for each row,",
        )
        return (1, in_features) if shape in rows else whole

    def _check_activations(self, module: str, who: str) -> None:
        found = [f"{module}.{last}" for last in ACTIVATION_SCALES if last in self._tensors[module]]
        if self._layout.is_static and not found:
            raise CheckpointError(
                f"Tensor {f'{module}.{ACTIVATION_SCALES[0]}'!r} is missing in {self._checkpoint.path}, but {who} needs "
                "it: activation_scheme is 'static'. Check that the checkpoint is complete."
            )
        for name in found:
            if not (finite(self._checkpoint, name).astype(np.float32) > 0).all():
                raise CheckpointError(
                    f"Tensor {name!r} in {self._checkpoint.path} holds a scale that is not above 0, by which no "
                    "activation can be divided. The file is damaged: fetch it again."
                )
