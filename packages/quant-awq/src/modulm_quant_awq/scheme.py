"""The `awq` quantization: `qweight`, `qzeros` and `scales` of a layer -> `GroupedInt` of 4 bits.

A weight is scale * (code - zero point), with one scale and zero point per group of inputs and output. There are two
layouts, "gemm" and "gemv", by the kernel they were made for; `words.py` unpacks both. Source: Lin et al. 2023,
arXiv:2306.00978; AutoAWQ.
"""

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import LayerTensors, expect, finite
from modulm.interfaces.quantization import GroupedInt, QuantizationScheme, Weight
from modulm.interfaces.quantization_config import QuantizationConfig, declares, follows, is_part, quantization_config
from modulm.interfaces.support import Support
from modulm_quant_awq import library, rounded
from modulm_quant_awq.words import columns, in_order, transposed

if TYPE_CHECKING:
    from pathlib import Path

    from modulm.interfaces.checkpoint import Checkpoint
    from modulm.interfaces.quantizing import Wish

_NAMES = ("awq", "awq_marlin", "auto_awq")
_STORED = {"qweight", "qzeros", "scales"}
_FLOATS = ("float16", "bfloat16", "float32")


class AWQScheme(QuantizationScheme):
    """Layers with a `qweight` are quantized; all others are read as they are."""

    name: ClassVar[str] = "awq"
    writes: ClassVar[tuple[str, ...]] = ("awq",)

    def __init__(self, config: QuantizationConfig, tensors: LayerTensors) -> None:
        _alias(config, "bits", "w_bit").value("bits", ..., among=(4,))
        groups = _alias(config, "group_size", "q_group_size")
        self._group_size = groups.whole("group_size", ..., least=-1)
        if self._group_size == 0:
            raise groups.refused("group_size", "a group has at least one input; -1 stands for a whole row")
        self._layout = _layout(config)
        config.flag("zero_point", True)  # what it means stands in the zero points
        self._plain = config.names("modules_to_not_convert")
        self._tensors = tensors

    @classmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Accept what declares one of the method's names."""
        return declares(checkpoint, *_NAMES)

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "AWQScheme":
        """Read the declaration, and which layers have which tensors."""
        return cls(quantization_config(checkpoint), LayerTensors(checkpoint))

    @classmethod
    def quantize(cls, checkpoint: "Checkpoint", out: "Path", wish: "Wish") -> str:
        """See base class: by auto-round, which calibrates, or by rounding to nearest where "rtn" was asked for."""
        method = wish.one_of("method", (library.NAME, "rtn"), library.NAME)
        return (rounded if method == "rtn" else library).quantize(checkpoint, out, wish)

    def describe(self) -> dict[str, Any]:
        """Return bits, groups and layout."""
        return {"stored": self._words, "layout": self._layout}

    def rule(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> str | None:
        """See base class: names, shapes and types of a layer's tensors and its scales are checked."""
        if not self._is_quantized(checkpoint, module):
            return None
        self._check(checkpoint, module, out_features, in_features)
        return self._words

    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight | None:
        """See base class."""
        if not self._is_quantized(checkpoint, module):
            return None
        groups = self._check(checkpoint, module, out_features, in_features)
        words, packed, scales = (checkpoint.tensor(f"{module}.{leaf}") for leaf in ("qweight", "qzeros", "scales"))
        if self._layout == "gemm":
            codes, zeros, scales = transposed(words), columns(packed).T, scales.T
        else:
            codes, zeros, scales = words.view(np.uint8), in_order(packed)[:, :groups], scales[:, :groups]
        if scales.dtype.name == "bfloat16":
            scales = scales.astype(np.float32)
        return GroupedInt(
            out_features=out_features,
            in_features=in_features,
            bits=4,
            group_size=in_features // groups,
            codes=codes,
            scales=np.ascontiguousarray(scales),
            minimums=np.ascontiguousarray(-(scales.astype(np.float32) * zeros)),
        )

    @property
    def _words(self) -> str:
        return f"4 bits, {f'groups of {self._group_size}' if self._group_size > 0 else 'one group a row'}"

    def _is_quantized(self, checkpoint: "Checkpoint", module: str) -> bool:
        """Say how a layer is stored; the list of those left alone and the tensors there must agree."""
        leaves = set(self._tensors.of(module))
        stored, others = leaves & _STORED, leaves - _STORED - {"bias"}
        what = f"Layer {module!r} of {checkpoint.path}"
        if stored and follows(module, lambda name: any(is_part(one, name) for one in self._plain), f"{what}: its list"):
            raise CheckpointError(
                f"{what} is in the list 'modules_to_not_convert' of its quantization_config, but has "
                f"{', '.join(sorted(stored))}."
            )
        if stored and others:
            raise CheckpointError(f"{what} has {', '.join(sorted(others))} beside {', '.join(sorted(stored))}.")
        return bool(stored)

    def _check(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> int:
        """Check a layer's tensors; return the number of groups in a row."""
        size = self._group_size if self._group_size > 0 else in_features
        who = f"an AWQ layer of {out_features} x {in_features} (bits=4, group_size={self._group_size})"
        if in_features % size:
            raise CheckpointError(
                f"group_size={size} does not divide the {in_features} inputs of layer {module!r} in {checkpoint.path}."
            )
        groups = in_features // size
        if self._layout == "gemm":
            packed, scales = (groups, out_features // 8), (groups, out_features)
            whole, words = out_features, (in_features, out_features // 8)
        else:
            width = _zeros_width(groups, size)
            packed, scales = (out_features, width), (out_features, width * 8)
            whole, words = in_features, (out_features, in_features // 8)
        if whole % 8 or in_features % 2:
            raise CheckpointError(f"Layer {module!r} in {checkpoint.path}: {who} does not fill whole 32-bit words.")
        expect(checkpoint, f"{module}.qweight", words, ("int32",), who=who)
        expect(checkpoint, f"{module}.qzeros", packed, ("int32",), who=who)
        expect(checkpoint, f"{module}.scales", scales, _FLOATS, who=who)
        finite(checkpoint, f"{module}.scales")
        return groups


def _zeros_width(groups: int, size: int) -> int:
    """Words of zero points in a row of the gemv layout: padded so that its kernel may read several at once."""
    multiple = 1 if size >= 128 else 2 if size == 64 else 4
    words = -(-groups // 8)
    return -(-words // multiple) * multiple


def _layout(config: QuantizationConfig) -> str:
    key = "version" if config.keys.get("version") else "format"
    found = config.keys.get(key)
    lower = {**config.keys, key: found.lower() if isinstance(found, str) else found}
    return str(QuantizationConfig(lower, config.where).value(key, "gemm", among=("gemm", "gemv")))


def _alias(config: QuantizationConfig, key: str, older: str) -> QuantizationConfig:
    """Return the declaration with AutoAWQ's own name of a key in place of transformers'."""
    if key in config.keys or older not in config.keys:
        return config
    return QuantizationConfig({**config.keys, key: config.keys[older]}, config.where)
