"""The quantizations `modelopt`, `modelopt_fp4`, `modelopt_mxfp8` and `modelopt_mixed`: checkpoints of NVIDIA ModelOpt.

All of them read whatever algorithm a checkpoint declares; the longer names are for users who mean a certain one, and
for checkpoints that say it so. Knows which layers a declaration means; `algorithms.py` knows their tensors.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import LayerTensors, finite
from modulm.interfaces.kv_cache import declared_kv_cache
from modulm.interfaces.quantization import QuantizationScheme, Weight
from modulm.interfaces.quantization_config import quantization_config
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_quant_modelopt.algorithms import ALGORITHMS, Algorithm, Layer
from modulm_quant_modelopt.declaration import MIXED, Declaration

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_METHODS = ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed")
_SCALES = ("weight_scale", "weight_scale_2")
_CACHE = ("k_scale", "v_scale", "k_bias", "v_bias", "output_scale")
_BESIDE = ("bias", "input_scale", *_CACHE)
_PLAIN = ("float32", "bfloat16", "float16")


class ModelOpt(QuantizationScheme):
    """Whatever ModelOpt exports, layer by layer."""

    name: ClassVar[str] = "modelopt"
    meant: ClassVar[tuple[str, ...]] = ()
    """Algorithms that the name stands for; empty: all."""
    unneeded_tensors: ClassVar[tuple[str, ...]] = (r"\.self_attn\.(attn\.|[kv]_proj\.)?[kv]_(scale|bias)$",)

    def __init__(self, checkpoint: "Checkpoint", declaration: Declaration) -> None:
        self._declaration = declaration
        self._by_layer = LayerTensors(checkpoint)
        self._tensors: dict[str, set[str]] = {}
        for name in checkpoint.tensor_names():
            module, _, last = name.rpartition(".")
            self._tensors.setdefault(module, set()).add(last)

    @classmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Accept a checkpoint that declares one of ModelOpt's methods, and an algorithm that this name stands for."""
        try:
            config = quantization_config(checkpoint)
            if config.method not in _METHODS:
                return Rejected(f"the checkpoint declares quant_method {config.method!r}")
            algorithm = Declaration(config).algorithm
        except CheckpointError as error:
            return Rejected(str(error))
        if cls.meant and algorithm not in cls.meant:
            return Rejected(f"the checkpoint's quant_algo is {algorithm!r}, not {' or '.join(cls.meant)}")
        return Accepted(algorithm)

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "ModelOpt":
        """Make the scheme. Raises `CheckpointError` for an algorithm that is not one of ours."""
        declaration = Declaration.of(checkpoint)
        for algorithm in sorted(declaration.algorithms() - set(ALGORITHMS)):
            key = "quantized_layers" if declaration.algorithm == MIXED else "quant_algo"
            what = f"algorithm {algorithm!r} is not read here; there is {', '.join(ALGORITHMS)}, and {MIXED} of them"
            raise declaration.config.refused(key, what)
        return cls(checkpoint, declaration)

    def rule(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> str | None:
        """See base class."""
        found = self._find(checkpoint, module, out_features, in_features)
        if found is None:
            return None
        found[0].weight(found[1])  # its numbers are not touched
        return found[0].rule

    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight | None:
        """See base class. None for layers left out, and for those that are stored in plain floats without scales."""
        found = self._find(checkpoint, module, out_features, in_features)
        return None if found is None else found[0].weight(found[1])

    def kv_cache_dtype(self, checkpoint: "Checkpoint") -> str | None:
        """See base class: declared beside `quant_algo`, wherever that is."""
        return declared_kv_cache(self._declaration.config)

    def describe(self) -> dict[str, Any]:
        """Return how many layers there are by algorithm, and which scales are not used, and why."""
        quantized = [module for module, lasts in self._tensors.items() if "weight_scale" in lasts]
        counts = Counter(self._declaration.of_layer(module) or "none" for module in quantized)
        found: dict[str, Any] = {"layers": dict(counts), "activations": "kept as floats"}
        for what, last in (("input scales", "input_scale"), ("KV scales", "k_scale")):
            if number := sum(last in lasts for lasts in self._tensors.values()):
                checked, counted = "not used; checked", "for a KV cache of few bits, see kv_cache_dtype"
                found[what] = f"of {number} layers: {checked if last == 'input_scale' else counted}"
        return found

    def _find(self, checkpoint: "Checkpoint", module: str, rows: int, columns: int) -> tuple[Algorithm, Layer] | None:
        lasts = self._tensors.get(module, set())
        has_scales = bool(lasts.intersection(_SCALES))
        algorithm = self._declaration.of_layer(module)
        plain = "weight" in lasts and checkpoint.info(f"{module}.weight").dtype in _PLAIN
        if algorithm is None and has_scales:
            raise CheckpointError(
                f"Layer {module!r} in {checkpoint.path} has {', '.join(sorted(lasts))}, but the "
                f"{self._declaration.config.where} leaves it out. Check that config and weights belong together."
            )
        if algorithm is None or (not has_scales and (plain or "weight" not in lasts)):
            return None  # a layer that is missing altogether is the loader's to name
        how = ALGORITHMS[algorithm]
        layer = Layer(checkpoint=checkpoint, module=module, algorithm=algorithm, out_features=rows, in_features=columns)
        self._by_layer.only(module, (*how.tensors, *_BESIDE))
        if "input_scale" in lasts and not (finite(checkpoint, layer.name("input_scale")).astype(np.float32) > 0).all():
            raise CheckpointError(
                f"Tensor {layer.name('input_scale')!r} in {checkpoint.path} is not above 0, by which no activation can "
                "be divided. The file is damaged: fetch it again."
            )
        return how, layer


class ModelOptFP4(ModelOpt):
    """Layers in NVFP4."""

    name: ClassVar[str] = "modelopt_fp4"
    meant: ClassVar[tuple[str, ...]] = ("NVFP4", "W4A16_NVFP4")


class ModelOptMXFP8(ModelOpt):
    """Layers in MXFP8."""

    name: ClassVar[str] = "modelopt_mxfp8"
    meant: ClassVar[tuple[str, ...]] = ("MXFP8",)


class ModelOptMixed(ModelOpt):
    """Each layer by an algorithm of its own."""

    name: ClassVar[str] = "modelopt_mixed"
    meant: ClassVar[tuple[str, ...]] = (MIXED,)
