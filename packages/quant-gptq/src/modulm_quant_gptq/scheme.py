"""The `gptq` quantization: `qweight`, `qzeros`, `scales` and `g_idx` of a layer -> `GroupedInt`.

A weight is scale * (code - zero point), with one scale and zero point per group of inputs and output. Where `g_idx`
scatters a group's inputs (activation order), columns are sorted by group and the order goes along as `Reordered`.
`rules.py` says what is declared, `bitstream.py` unpacks. Source: Frantar et al. 2022, arXiv:2210.17323; AutoGPTQ.
"""

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import LayerTensors, expect, finite
from modulm.interfaces.quantization import GroupedInt, QuantizationScheme, Reordered, Weight
from modulm.interfaces.quantization_config import declares, quantization_config
from modulm.interfaces.support import Support
from modulm_quant_gptq import library, rounded
from modulm_quant_gptq.bitstream import codes, nibbles, zero_points
from modulm_quant_gptq.rules import Rule, Rules

if TYPE_CHECKING:
    from pathlib import Path

    from modulm.interfaces.checkpoint import Checkpoint
    from modulm.interfaces.quantizing import Wish

_LEAVES = {"qweight", "qzeros", "scales", "g_idx", "bias"}
_NAMES = ("gptq", "gptq_marlin", "auto_gptq")
_ROWS_AT_ONCE = 1024


class GPTQScheme(QuantizationScheme):
    """Layers with a `qweight` are quantized; all others are read as they are."""

    name: ClassVar[str] = "gptq"
    writes: ClassVar[tuple[str, ...]] = ("gptq",)

    def __init__(self, rules: Rules, tensors: LayerTensors) -> None:
        self._rules = rules
        self._tensors = tensors

    @classmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Accept what declares one of the method's names."""
        return declares(checkpoint, *_NAMES)

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "GPTQScheme":
        """Read the declaration, and which layers have which tensors."""
        return cls(Rules(quantization_config(checkpoint)), LayerTensors(checkpoint))

    @classmethod
    def quantize(cls, checkpoint: "Checkpoint", out: "Path", wish: "Wish") -> str:
        """See base class: by gptqmodel, which calibrates, or by rounding to nearest where "rtn" was asked for."""
        method = wish.one_of("method", (library.NAME, "rtn"), library.NAME)
        return (rounded if method == "rtn" else library).quantize(checkpoint, out, wish)

    def describe(self) -> dict[str, Any]:
        """Return bits and groups, in general and by expression."""
        return self._rules.describe()

    def rule(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> str | None:
        """See base class: names, shapes and types of a layer's tensors, its scales and groups are checked."""
        rule = self._rule(checkpoint, module)
        if rule is None:
            return None
        self._check(checkpoint, module, rule, out_features, in_features)
        return rule.words

    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight | None:
        """See base class."""
        rule = self._rule(checkpoint, module)
        if rule is None:
            return None
        order = self._check(checkpoint, module, rule, out_features, in_features)
        words = checkpoint.tensor(f"{module}.qweight")
        scales = checkpoint.tensor(f"{module}.scales")
        if scales.dtype.name == "bfloat16":
            scales = scales.astype(np.float32)
        zeros = zero_points(checkpoint.tensor(f"{module}.qzeros"), rule.bits, minus_one=self._rules.minus_one)
        minimums = -(scales.astype(np.float32) * zeros)
        size = {"out_features": out_features, "in_features": in_features}
        weight = GroupedInt(
            **size,
            bits=rule.bits,
            group_size=in_features // len(scales),
            codes=_codes(words, rule.bits, order),
            scales=np.ascontiguousarray(scales.T),
            minimums=np.ascontiguousarray(minimums.T),
        )
        return weight if order is None else Reordered(**size, weight=weight, order=order)

    def _rule(self, checkpoint: "Checkpoint", module: str) -> Rule | None:
        """Return how a layer is stored, None for plain; the declaration and the tensors there must agree."""
        leaves, rule = set(self._tensors.of(module)), self._rules.of(module)
        stored = leaves & (_LEAVES - {"bias"})
        what = f"Layer {module!r} of {checkpoint.path}"
        if stored and rule is None:
            raise CheckpointError(
                f"{what} is to be left as it is, by 'dynamic' or 'modules_to_not_convert' in its quantization_config, "
                f"but it has {', '.join(sorted(stored))}."
            )
        if stored and leaves - _LEAVES:
            others = ", ".join(sorted(leaves - _LEAVES))
            raise CheckpointError(f"{what} has {others} beside {', '.join(sorted(stored))}.")
        if not stored and module == "lm_head" and self._rules.has_lm_head:
            raise CheckpointError(f"{what} has no 'qweight', but its quantization_config says that lm_head=True.")
        return rule if stored else None

    def _check(
        self, checkpoint: "Checkpoint", module: str, rule: Rule, out_features: int, in_features: int
    ) -> np.ndarray | None:
        """Check a layer's tensors; return the order of its inputs, None where groups lie together."""
        bits, size = rule.bits, rule.group_size if rule.group_size > 0 else in_features
        who = f"a GPTQ layer of {out_features} x {in_features} (bits={bits}, group_size={rule.group_size})"
        if in_features % size:
            raise CheckpointError(
                f"group_size={size} does not divide the {in_features} inputs of layer {module!r} in {checkpoint.path}."
            )
        if in_features * bits % 32 or out_features * bits % 32:
            raise CheckpointError(f"Layer {module!r} in {checkpoint.path}: {who} does not fill whole 32-bit words.")
        groups = in_features // size
        expect(checkpoint, f"{module}.qweight", (in_features * bits // 32, out_features), ("int32",), who=who)
        expect(checkpoint, f"{module}.qzeros", (groups, out_features * bits // 32), ("int32",), who=who)
        floats = ("float16", "bfloat16", "float32")
        expect(checkpoint, f"{module}.scales", (groups, out_features), floats, who=who)
        finite(checkpoint, f"{module}.scales")
        if "g_idx" not in self._tensors.of(module) and not rule.reorders:
            return None
        expect(checkpoint, f"{module}.g_idx", (in_features,), ("int32", "int64"), who=f"{who} with desc_act")
        return _order(checkpoint.tensor(f"{module}.g_idx"), size, f"Tensor '{module}.g_idx' in {checkpoint.path}")


def _order(g_idx: np.ndarray, size: int, what: str) -> np.ndarray | None:
    """Return which input each sorted column has; None where they are sorted. Groups must have `size` inputs each."""
    groups = len(g_idx) // size
    if g_idx.min() < 0 or g_idx.max() >= groups:
        raise CheckpointError(f"{what} names groups {g_idx.min()} to {g_idx.max()}, but there are {groups}.")
    counts = np.bincount(g_idx, minlength=groups)
    if (counts != size).any():
        group = int(np.argmax(counts != size))
        raise CheckpointError(f"{what} gives group {group} {counts[group]} inputs, but group_size is {size}.")
    order = np.argsort(g_idx, kind="stable").astype(np.int32)
    return None if np.array_equal(order, np.arange(len(order))) else order


def _codes(words: np.ndarray, bits: int, order: np.ndarray | None) -> np.ndarray:
    """Return a `GroupedInt`'s codes of words int32 [in_features * bits / 32, out_features], columns in `order`."""
    num_inputs, num_rows = len(words) * 32 // bits, words.shape[1]
    out = np.empty((num_rows, num_inputs if bits == 8 else num_inputs // 2), np.uint8)
    for first in range(0, num_rows, _ROWS_AT_ONCE):
        rows = np.ascontiguousarray(words[:, first : first + _ROWS_AT_ONCE].T)
        part = out[first : first + _ROWS_AT_ONCE]
        if order is None:
            part[:] = rows.view(np.uint8) if bits == 8 else nibbles(rows, bits)
            continue
        sorted_codes = codes(rows, bits)[:, order]
        part[:] = sorted_codes if bits == 8 else sorted_codes[:, 0::2] | sorted_codes[:, 1::2] << 4
    return out
