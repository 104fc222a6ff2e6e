"""The `bitsandbytes` quantization: layers in 4 or 8 bits, by what their tensors say; other checkpoints become NF4.

Knows which layers are of which kind. Their tensors: `blocks.py` and `rows.py`. What is made here: `quantized.py`.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import LayerTensors
from modulm.interfaces.quantization import Dense, QuantizationScheme, Weight
from modulm.interfaces.quantization_config import declares, quantization_config
from modulm.interfaces.support import Accepted, Support
from modulm_quant_bitsandbytes import library
from modulm_quant_bitsandbytes.blocks import STATE, TENSORS, Blocks
from modulm_quant_bitsandbytes.quantized import Made, nf4
from modulm_quant_bitsandbytes.rows import LAYOUT, SCALES, Rows

if TYPE_CHECKING:
    from pathlib import Path

    from modulm.interfaces.checkpoint import Checkpoint
    from modulm.interfaces.quantizing import Wish


class BitsAndBytes(QuantizationScheme):
    """NF4 and FP4 with scales of one or two levels, LLM.int8; and NF4 made while loading."""

    name: ClassVar[str] = "bitsandbytes"
    writes: ClassVar[tuple[str, ...]] = library.FORMATS

    def __init__(self, bits: int | None, tensors: LayerTensors) -> None:
        self._bits = bits  # as declared; None: not at all
        self._tensors = tensors
        self._rules: dict[str, str] = {}

    @classmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Accept what declares `quant_method` "bitsandbytes"."""
        return declares(checkpoint, cls.name)

    @classmethod
    def quantizes(cls, checkpoint: "Checkpoint") -> Support:
        """Accept every checkpoint."""
        return Accepted(f"{Made.rule}, made while loading")

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "BitsAndBytes":
        """Make the scheme. Raises `CheckpointError` where flags are none, or not one of them is set."""
        declared = quantization_config(checkpoint)
        tensors = LayerTensors(checkpoint)
        if declared.method is None:
            return cls(None, tensors)
        four, eight = declared.flag("load_in_4bit", False), declared.flag("load_in_8bit", False)
        if four == eight:
            raise declared.refused("load_in_4bit", f"either it or load_in_8bit={eight!r} must be true")
        return cls(4 if four else 8, tensors)

    def rule(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> str | None:
        """See base class."""
        layer = self._layer(checkpoint, module, (out_features, in_features))
        return None if layer is None else layer.rule

    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight | None:
        """See base class."""
        layer = self._layer(checkpoint, module, (out_features, in_features))
        if layer is None:
            return None
        self._rules[module] = layer.rule
        return layer.weight()

    def slice(self, name: str, weight: Dense) -> Weight:
        """See base class."""
        is_made = self._bits is None and Made.serves(name, weight.in_features)
        return nf4(weight.data, f"Tensor {name!r}") if is_made else weight

    @classmethod
    def quantize(cls, checkpoint: "Checkpoint", out: "Path", wish: "Wish") -> str:
        """See base class."""
        return library.quantize(checkpoint, out, wish)

    def describe(self) -> dict[str, Any]:
        """Return how many layers were loaded by each rule."""
        return {
            "bits": self._bits or Made.bits,
            "declared": self._bits is not None,
            "layers": dict(Counter(self._rules.values())),
        }

    def _layer(self, checkpoint: "Checkpoint", module: str, shape: tuple[int, int]) -> Blocks | Rows | Made | None:
        """Return a layer that was checked; None: it is in plain numbers, and stays so."""
        if self._bits is None:
            return Made(checkpoint, module, shape) if Made.serves(module, shape[1]) else None
        found = self._tensors.of(module)
        states = [suffix for suffix in found if suffix.startswith(STATE)]
        layer: Blocks | Rows
        if states:
            layer = Blocks(checkpoint, module, states[0], shape)
            self._tensors.only(module, {"weight", "bias", states[0], *TENSORS})
        elif SCALES in found:
            layer = Rows(checkpoint, module, shape)
            self._tensors.only(module, {"weight", "bias", SCALES, LAYOUT})
            if LAYOUT in found:
                layer.check_layout()
        else:
            self._check_plain(checkpoint, module, found)
            return None
        if layer.bits != self._bits:
            raise CheckpointError(
                f"Layer {module!r} in {checkpoint.path} is stored by {layer.rule}, but quantization_config has "
                f"load_in_{self._bits}bit=True. Check that config and weights belong together."
            )
        return layer

    def _check_plain(self, checkpoint: "Checkpoint", module: str, found: list[str]) -> None:
        """Refuse a layer whose scales, or the word on how to read them, are missing."""
        left = {*TENSORS, LAYOUT} & set(found)
        is_bytes = "weight" in found and checkpoint.info(f"{module}.weight").dtype in ("int8", "uint8")
        if left or is_bytes:
            missing = SCALES if self._bits == 8 else f"{STATE}nf4 (or fp4)"
            raise CheckpointError(
                f"Tensor '{module}.{missing}' is missing in {checkpoint.path}. Layer {module!r} has: "
                f"{', '.join(found)}. It is quantized (load_in_{self._bits}bit=True) and cannot be read without. Fetch "
                "the checkpoint again."
            )
