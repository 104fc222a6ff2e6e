"""The quantizations `fp8` and `fbgemm_fp8`: what such checkpoints declare, and which of their layers it means.

`stored.py` finds a layer's tensors. Knows no kernels: weights stay in 8 bits, activations are whatever the model's
dtype is.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from modulm.errors import CheckpointError
from modulm.interfaces.quantization import QuantizationScheme, Weight
from modulm.interfaces.quantization_config import QuantizationConfig, declares, follows, is_part, quantization_config
from modulm.interfaces.support import Support
from modulm_quant_fp8.online import PerTensor, can_quantize
from modulm_quant_fp8.stored import ACTIVATION_SCALES, DTYPES, Layout, StoredLayers

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_LISTS = ("ignored_layers", "modules_to_not_convert")


class StoredFP8(QuantizationScheme):
    """Weights that a checkpoint holds in 8-bit floats: the base of both formats."""

    unneeded_tensors: ClassVar[tuple[str, ...]] = (r"\.self_attn\.(attn\.|[qkv]_proj\.)?([qkv]|kv)_scale$",)

    def __init__(self, checkpoint: "Checkpoint", config: QuantizationConfig, layout: Layout) -> None:
        self._layers = StoredLayers(checkpoint, layout)
        self._layout = layout
        self._activations = str(config.keys.get("activation_scheme") or "dynamic")
        self._ignored = {key: config.names(key) for key in _LISTS}

    @classmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Accept a checkpoint that declares this `quant_method`."""
        return declares(checkpoint, cls.name)

    def rule(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> str | None:
        """See base class."""
        if not self._is_quantized(checkpoint, module):
            return None
        self._layers.block(module, out_features, in_features)
        return self.name

    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight | None:
        """See base class. None for layers that are stored in other floats, which published lists often leave out."""
        if not self._is_quantized(checkpoint, module):
            return None
        return self._layers.weight(module, out_features, in_features)

    def describe(self) -> dict[str, Any]:
        """Return how weights share scales, how many layers there are, and which scales are not used, and why."""
        block = self._layout.block
        found: dict[str, Any] = {
            "weights": f"8-bit floats, scales by {f'blocks of {block[0]} x {block[1]}' if block else 'tensor or row'}",
            "layers": len(self._layers.with_scales()),
            "activations": f"kept as floats, where the checkpoint means 8 bits ({self._activations})",
        }
        inputs, cache = self._layers.with_any(ACTIVATION_SCALES), self._layers.with_any(("k_scale", "kv_scale"))
        if inputs:
            found["input scales"] = f"of {len(inputs)} layers: checked, not used"
        if cache:
            found["KV scales"] = f"of {len(cache)} layers: for a KV cache of 8-bit floats, see kv_cache_dtype"
        return found

    def _is_quantized(self, checkpoint: "Checkpoint", module: str) -> bool:
        is_float8 = self._layers.is_float8(module)
        ignored = any(follows(module, partial(_means, names), key) for key, names in self._ignored.items())
        if is_float8 and ignored:
            raise CheckpointError(
                f"Layer {module!r} in {checkpoint.path} is stored in 8-bit floats, but its declaration leaves it out "
                f"({' or '.join(_LISTS)}). Check that config and weights belong together."
            )
        if not is_float8 and self._layers.has_scale(module):
            raise CheckpointError(
                f"Tensor {f'{module}.weight'!r} in {checkpoint.path} has scales beside it, but is missing or not of "
                f"8-bit floats ({' or '.join(DTYPES.values())}), as {self.name} has it. The checkpoint may be in "
                "another format than its quant_method says."
            )
        return is_float8


class FP8(StoredFP8):
    """One scale for a tensor, a row or a block of a weight (AutoFP8, DeepSeek, Qwen, transformers)."""

    name: ClassVar[str] = "fp8"

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> QuantizationScheme:
        """Make the scheme. A checkpoint that declares nothing is quantized as it loads, as `fp8_per_tensor` does it."""
        config = quantization_config(checkpoint)
        if config.method is None:
            return PerTensor.from_checkpoint(checkpoint)
        scheme = config.value("activation_scheme", "dynamic", among=("dynamic", "static"))
        kind = config.value("fmt", "any", among=("any", *DTYPES))
        dtypes = tuple(DTYPES.values()) if kind == "any" else (DTYPES[kind],)
        layout = Layout(method=cls.name, dtypes=dtypes, block=_block(config), is_static=scheme == "static")
        return cls(checkpoint, config, layout)

    @classmethod
    def quantizes(cls, checkpoint: "Checkpoint") -> Support:
        """See base class."""
        return can_quantize(checkpoint)


class FbgemmFP8(StoredFP8):
    """One scale for each row, as the library FBGEMM has it; activations are meant to be scaled token by token.

    `activation_scale_ub`, where larger activations would be cut off, has no use for activations that stay floats.
    """

    name: ClassVar[str] = "fbgemm_fp8"

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "FbgemmFP8":
        """See base class."""
        return cls(
            checkpoint, quantization_config(checkpoint), Layout(method=cls.name, dtypes=(DTYPES["e4m3"],), by_row=True)
        )


def _block(config: QuantizationConfig) -> tuple[int, int] | None:
    found = config.keys.get("weight_block_size")
    if found is None:
        return None
    if (
        not isinstance(found, list | tuple)
        or len(found) != 2
        or any(type(side) is not int or side < 1 for side in found)
    ):
        raise config.refused("weight_block_size", "it must be two whole numbers of at least 1, rows and columns")
    return found[0], found[1]


def _means(names: Sequence[str], module: str) -> bool:
    """Whether a list means a layer: by words, or after "re:" by a regular expression from the beginning."""
    patterns = [name.removeprefix("re:") for name in names if name.startswith("re:")]
    words = [name for name in names if not name.startswith("re:")]
    return any(is_part(name, module) for name in words) or any(re.match(one, module) for one in patterns)
