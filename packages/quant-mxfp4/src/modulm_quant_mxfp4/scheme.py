"""The quantizations `mxfp4` and `gpt_oss_mxfp4`: 4-bit numbers, 32 of them with a power of two, as gpt-oss has them.

A tensor `x` [..., rows, columns] is stored as two: `x_blocks`, bytes [..., rows, columns / 32, 16] with the even column
in the low half of a byte, and `x_scales`, exponents [..., rows, columns / 32] above 127. Layers are stored so as
`<layer>.weight_blocks`, stacked experts as `<experts>.gate_up_proj_blocks`, in whatever order of rows the model has
them: gpt-oss has those of gate and up in turn. Knows no kernels and no models. Source: OCP Microscaling Formats 1.0.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import expect
from modulm.interfaces.quantization import BlockFloat4, QuantizationScheme, Weight
from modulm.interfaces.quantization_config import declares, follows, is_part, quantization_config
from modulm.interfaces.support import Support

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_GROUP = 32
_NAN = 255
_LIST = "modules_to_not_convert"
_METHODS = ("mxfp4", "gpt_oss_mxfp4")


class MXFP4(QuantizationScheme):
    """Layers and stacked experts in blocks."""

    name: ClassVar[str] = "mxfp4"

    def __init__(self, checkpoint: "Checkpoint", left_out: list[str]) -> None:
        self._names = set(checkpoint.tensor_names())
        self._left_out = left_out

    @classmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Accept a checkpoint that declares either name: they are one format."""
        return declares(checkpoint, *_METHODS)

    @classmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "MXFP4":
        """See base class."""
        return cls(checkpoint, quantization_config(checkpoint).names(_LIST))

    def rule(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> str | None:
        """See base class."""
        return None if self.weight(checkpoint, module, out_features, in_features) is None else self.name

    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight | None:
        """See base class. None for layers without blocks, which lists of published checkpoints often leave out."""
        name = f"{module}.weight"
        if not self.stack_tensors(checkpoint, name):
            return None
        self._refuse_left_out(checkpoint, module)
        return self._read(checkpoint, name, (out_features, in_features), ())

    def stack_tensors(self, checkpoint: "Checkpoint", name: str) -> tuple[str, ...]:
        """See base class."""
        return tuple(one for one in (f"{name}_blocks", f"{name}_scales") if one in self._names)

    def stacked(self, checkpoint: "Checkpoint", name: str, shape: tuple[int | None, int, int], index: int) -> Weight:
        """See base class."""
        self._refuse_left_out(checkpoint, name)
        return self._read(checkpoint, name, shape[1:], (shape[0], index))

    def describe(self) -> dict[str, Any]:
        """Return how many tensors are in blocks."""
        blocks = sum(name.endswith("_blocks") for name in self._names)
        return {"weights": "4 bits, groups of 32", "tensors": blocks, "activations": "kept as floats"}

    def _refuse_left_out(self, checkpoint: "Checkpoint", module: str) -> None:
        if follows(module, partial(_means, self._left_out), _LIST):
            raise CheckpointError(
                f"Layer {module!r} in {checkpoint.path} is stored in blocks of MXFP4, but {_LIST} leaves it out. Check "
                "that config and weights belong together."
            )

    def _read(
        self, checkpoint: "Checkpoint", name: str, matrix: tuple[int, int], stack: tuple[int | None, int] | tuple[()]
    ) -> BlockFloat4:
        """Return a matrix; `stack` is (how many there are or None, which it is), or empty where it is alone."""
        rows, columns = matrix
        who = f"{name!r}, {rows} x {columns} in MXFP4,"
        if columns % _GROUP:
            raise CheckpointError(
                f"Tensor {f'{name}_blocks'!r} in {checkpoint.path} cannot be that of {who} as groups of {_GROUP} do "
                "not divide its rows. Check that config and weights belong together."
            )
        outer = stack[:1]
        grid = (*outer, rows, columns // _GROUP)
        count = expect(checkpoint, f"{name}_blocks", (*grid, _GROUP // 2), ("uint8",), who=who).shape[0]
        expect(checkpoint, f"{name}_scales", grid, ("uint8", "float8_e8m0fnu"), who=who)
        blocks, scales = (checkpoint.tensor(f"{name}_{last}") for last in ("blocks", "scales"))
        if stack:
            if not 0 <= stack[1] < count:
                raise CheckpointError(
                    f"Tensor {f'{name}_blocks'!r} in {checkpoint.path} has no matrix {stack[1]} of {count}."
                )
            blocks, scales = blocks[stack[1]], scales[stack[1]]
        scales = scales.view(np.uint8)
        if (scales == _NAN).any():
            raise CheckpointError(
                f"Tensor {f'{name}_scales'!r} in {checkpoint.path} has scales that are NaN (255): all results of {who} "
                "would be. The file is damaged: fetch it again."
            )
        return BlockFloat4(
            out_features=rows, in_features=columns, group_size=_GROUP, codes=blocks.reshape(rows, -1), scales=scales
        )


class GptOssMXFP4(MXFP4):
    """The same under the name that vLLM gives it for gpt-oss."""

    name: ClassVar[str] = "gpt_oss_mxfp4"


def _means(names: Sequence[str], module: str) -> bool:
    """Whether a list means a layer: by whole words, or with stars by a pattern of it or of what it is in."""
    patterns = [name for name in names if "*" in name]
    if any(fnmatchcase(module, one) for name in patterns for one in (name, f"{name}.*")):
        return True
    return any(is_part(name, module) for name in names if name not in patterns)
