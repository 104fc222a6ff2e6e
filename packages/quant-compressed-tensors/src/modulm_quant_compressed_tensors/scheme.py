"""The `compressed-tensors` quantization: each layer by the group of `config_groups` that means it.

Knows which format a layer is in, and checks that its tensors agree. `targets.py` reads the declaration, `integers.py`
and `floats.py` the tensors.
"""

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import LayerTensors
from modulm.interfaces.quantization import QuantizationScheme, Weight
from modulm.interfaces.quantization_config import declares
from modulm.interfaces.support import Support
from modulm_quant_compressed_tensors import rounded
from modulm_quant_compressed_tensors.arguments import MXFP4, NVFP4, PACKED, Arguments
from modulm_quant_compressed_tensors.floats import Floats4, Floats8
from modulm_quant_compressed_tensors.integers import Bytes, Packed
from modulm_quant_compressed_tensors.layer import SCALE, Layer
from modulm_quant_compressed_tensors.targets import Targets

if TYPE_CHECKING:
    from pathlib import Path

    from modulm.interfaces.checkpoint import Checkpoint
    from modulm.interfaces.quantizing import Wish

_CODES = "weight_packed"
_CACHE = r"\.(self_attn|attention)\.([qkv]|kv|prob)_(scale|zero_point|global_scale)$"
"""Names of what the cache of keys and values would be rounded by."""


class CompressedTensors(QuantizationScheme):
    """Integers of 1 to 8 bits, FP8, MXFP8, NVFP4 and MXFP4, with rules per layer."""

    name: ClassVar[str] = "compressed-tensors"
    unneeded_tensors: ClassVar[tuple[str, ...]] = (_CACHE,)
    writes: ClassVar[tuple[str, ...]] = rounded.FORMATS

    def __init__(self, targets: Targets, checkpoint: "Checkpoint") -> None:
        self._targets = targets
        self._tensors = LayerTensors(checkpoint)
        self._cache = sum(re.search(_CACHE, name) is not None for name in checkpoint.tensor_names())
        self._loaded: dict[str, str] = {}

    @classmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Accept what declares `quant_method` "compressed-tensors"."""
        return declares(checkpoint, cls.name)

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "CompressedTensors":
        """Make the scheme. Raises `CheckpointError` naming the key that cannot be honoured."""
        return cls(Targets(checkpoint), checkpoint)

    def rule(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> str | None:
        """See base class."""
        layer = self._layer(checkpoint, module, (out_features, in_features))
        return None if layer is None else str(layer.arguments)

    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight | None:
        """See base class."""
        layer = self._layer(checkpoint, module, (out_features, in_features))
        if layer is None:
            return None
        self._loaded[module] = str(layer.arguments)
        return layer.weight()

    @classmethod
    def quantize(cls, checkpoint: "Checkpoint", out: "Path", wish: "Wish") -> str:
        """See base class."""
        return rounded.quantize(checkpoint, out, wish)

    def describe(self) -> dict[str, Any]:
        """Return the rules there are, and how many layers were loaded by each; None: none so far."""
        loaded = Counter(self._loaded.values())
        rules = {str(arguments): loaded.get(str(arguments)) for arguments in self._targets.all()}
        told = f"in {self._cache} tensors: for a KV cache of few bits, see kv_cache_dtype"
        cache = {"KV scales": told} if self._cache else {}
        return {"rules": rules, "activations": "kept as floats", **cache}

    def _layer(self, checkpoint: "Checkpoint", module: str, shape: tuple[int, int]) -> Layer | None:
        """Return a layer that was checked; None: it is stored in plain numbers, whatever is said of its class."""
        arguments, found = self._targets.of(module), self._tensors.of(module)
        is_plain = SCALE not in found and _CODES not in found and not _is_small(checkpoint, module, found)
        if arguments is None and not is_plain:
            raise CheckpointError(
                f"Layer {module!r} in {checkpoint.path} is quantized (it has: {', '.join(found)}), but "
                "quantization_config does not say how: no target of config_groups means it, or 'ignore' does. Check "
                "that config and weights belong together."
            )
        if arguments is None or (is_plain and "weight" in found):
            return None
        return _kind(arguments)(self._tensors, checkpoint, module, arguments, shape)


def _is_small(checkpoint: "Checkpoint", module: str, found: list[str]) -> bool:
    return "weight" in found and checkpoint.info(f"{module}.weight").dtype.startswith(("int", "uint", "float8"))


def _kind(arguments: Arguments) -> type[Layer]:
    if arguments.format == PACKED:
        return Packed
    if arguments.format in (NVFP4, MXFP4):
        return Floats4
    return Bytes if arguments.kind == "int" else Floats8
