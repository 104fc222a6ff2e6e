"""The `torchao` quantization: checkpoints of int8 that torchao saved, for floats or for bytes as activations.

A weight is `_weight_qdata`, `_weight_scale` and `_weight_zero_point` beside where it would be. Activations stay what
they are: how a kernel rounds them is its own business. Source: `Int8Tensor` and safetensors support of torchao.
"""

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import LayerTensors, expect, finite
from modulm.interfaces.quantization import ChannelInt8, GroupedInt, QuantizationScheme, Weight
from modulm.interfaces.quantization_config import QuantizationConfig, declares, quantization_config
from modulm.interfaces.support import Support

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_CODES, _SCALES, _ZEROS = "_weight_qdata", "_weight_scale", "_weight_zero_point"
_INT8 = ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Int8StaticActivationInt8WeightConfig")
_BY_NAME = ("FqnToConfig", "ModuleFqnToConfig")
_FLOATS = ("float32", "bfloat16", "float16")


class TorchAO(QuantizationScheme):
    """Signed bytes with scales by row or by group of inputs."""

    name: ClassVar[str] = "torchao"

    def __init__(self, tensors: LayerTensors, kinds: list[str]) -> None:
        self._tensors = tensors
        self._kinds = kinds

    @classmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Accept what declares `quant_method` "torchao"."""
        return declares(checkpoint, cls.name)

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "TorchAO":
        """Make the scheme. Raises `CheckpointError` naming a `quant_type` that is not int8."""
        return cls(LayerTensors(checkpoint), _kinds(quantization_config(checkpoint)))

    def rule(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> str | None:
        """See base class. None for a layer in plain numbers: its tensors say so, whatever layers are declared."""
        found = self._tensors.of(module)
        if "weight" in found and _CODES not in found and _SCALES not in found:
            return None
        name = f"{module}.{_SCALES}"
        who = f"a torchao layer of {out_features} x {in_features}"
        expect(checkpoint, f"{module}.{_CODES}", (out_features, in_features), ("int8",), who=who)
        scales = expect(checkpoint, name, (out_features, None), _FLOATS, who=who)
        finite(checkpoint, name)
        if not scales.shape[1] or in_features % scales.shape[1]:
            raise CheckpointError(
                f"Tensor {name!r} in {checkpoint.path} has {scales.shape[1]} scales in a row, which do not share "
                f"{in_features} inputs evenly. Check that config and weights belong together."
            )
        if _ZEROS in found:
            expect(checkpoint, f"{module}.{_ZEROS}", scales.shape, ("int8",), who=who)
        self._tensors.only(module, (_CODES, _SCALES, _ZEROS, "bias"))
        return f"int8, groups of {in_features // scales.shape[1]}"

    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight | None:
        """See base class."""
        if self.rule(checkpoint, module, out_features, in_features) is None:
            return None
        codes, scales = (checkpoint.tensor(f"{module}.{suffix}") for suffix in (_CODES, _SCALES))
        scales = scales.astype(np.float32)
        zeros = np.zeros(1, np.int8)
        if _ZEROS in self._tensors.of(module):
            zeros = checkpoint.tensor(f"{module}.{_ZEROS}")
        common: dict[str, Any] = {"out_features": out_features, "in_features": in_features}
        if scales.shape[1] == 1 and not zeros.any():
            return ChannelInt8(**common, codes=codes, scales=scales[:, 0])
        minimums = scales * -(zeros.astype(np.float32) + 128)
        size = in_features // scales.shape[1]
        codes = codes.view(np.uint8) ^ 128
        return GroupedInt(**common, bits=8, group_size=size, codes=codes, scales=scales, minimums=minimums)

    def describe(self) -> dict[str, Any]:
        """Return the kinds that the checkpoint declares."""
        return {"declared": self._kinds, "activations": "kept as floats"}


def _kinds(declared: QuantizationConfig) -> list[str]:
    """Return what `quant_type` names, for all layers or for some."""
    found = declared.keys.get("quant_type")
    default = found.get("default") if isinstance(found, dict) else None
    kind, data = _kind(default)
    named = data.get("fqn_to_config") or data.get("module_fqn_to_config") or {} if kind in _BY_NAME else {}
    kinds = sorted({_kind(one)[0] for one in named.values() if one is not None}) if isinstance(named, dict) else []
    kinds = kinds if kind in _BY_NAME else [kind]
    if not kinds or not set(kinds) <= set(_INT8):
        raise declared.refused("quant_type", f"it must name, for all layers, one of {', '.join(_INT8)}")
    return kinds


def _kind(config: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of one of torchao's configurations, and its contents."""
    if not isinstance(config, dict):
        return "", {}
    data = config.get("_data")
    return str(config.get("_type")), data if isinstance(data, dict) else {}
