"""What ModelOpt declares: in `quantization_config`, or under "quantization" in `hf_quant_config.json`.

Says which algorithm a layer is stored by, going by names alone: all layers by one, but for those left out, or each by
its own ("MIXED_PRECISION"). Knows algorithms as words; `algorithms.py` knows their tensors.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from modulm.interfaces.quantization_config import FUSED, QuantizationConfig, follows, is_part, quantization_config

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

MIXED = "MIXED_PRECISION"
_LEFT_OUT = ("exclude_modules", "ignore")


class Declaration:
    """A checkpoint's algorithms by layer.

    Attributes:
        config: The declaration's keys, those under "quantization" among them.
        algorithm: `quant_algo` in capitals; "MIXED_PRECISION" where each layer has its own.
    """

    def __init__(self, config: QuantizationConfig) -> None:
        inner = config.keys.get("quantization")
        self.config = QuantizationConfig({**config.keys, **inner}, config.where) if isinstance(inner, dict) else config
        found = self.config.keys.get("quant_algo")
        if not isinstance(found, str):
            raise self.config.refused("quant_algo", "it must be the name of an algorithm, such as 'FP8' or 'NVFP4'")
        self.algorithm = found.upper()
        self.method = config.method
        self._left_out = {key: self.config.names(key) for key in _LEFT_OUT}
        self._by_layer = self._layers() if self.algorithm == MIXED else {}

    @classmethod
    def of(cls, checkpoint: "Checkpoint") -> "Declaration":
        """Read it. Raises `CheckpointError` naming the key that cannot be honoured."""
        return cls(quantization_config(checkpoint))

    def algorithms(self) -> set[str]:
        """Return all algorithms that layers are declared to be stored by."""
        return set(self._by_layer.values()) if self.algorithm == MIXED else {self.algorithm}

    def of_layer(self, module: str) -> str | None:
        """Return the algorithm of a layer; None where the declaration leaves it out.

        Raises `CheckpointError` where it means some parts of a fused layer and not others.
        """
        if any(follows(module, partial(_means, names), key) for key, names in self._left_out.items()):
            return None
        if self.algorithm != MIXED:
            return self.algorithm
        parent, _, last = module.rpartition(".")
        names = [module, *(f"{parent}.{fused}" for fused, parts in FUSED.items() if last in parts)]
        exact = [self._by_layer[name] for name in names if name in self._by_layer]
        wild = [algorithm for name, algorithm in self._by_layer.items() if "*" in name and fnmatchcase(module, name)]
        return next(iter([*exact, *wild]), None)

    def _layers(self) -> dict[str, str]:
        stored = self.config.keys.get("quantized_layers")
        if not isinstance(stored, dict) or not stored:
            raise self.config.refused("quantized_layers", f"{MIXED} needs an object: layer -> its quant_algo")
        found = {}
        for name, entry in stored.items():
            algorithm = entry.get("quant_algo") if isinstance(entry, dict) else None
            if not isinstance(algorithm, str):
                raise self.config.refused("quantized_layers", f"layer {name!r} has no quant_algo that is a name")
            found[name] = algorithm.upper()
        return found


def _means(names: Sequence[str], module: str) -> bool:
    """Whether a list means a layer: with a star by a pattern of the whole name, else by whole words."""
    patterns = [name for name in names if "*" in name or "?" in name]
    if any(fnmatchcase(one, name) for name in patterns for one in (module, f"{module}.")):
        return True
    return any(is_part(name, module) for name in names if name not in patterns)
