"""ModelOpt's algorithms: which tensors a layer has by each, and the `Weight` that they are worth.

Everything is checked by name, type and shape before numbers are read. Weights alone count: activations stay floats
here, which is more exact than the 4 or 8 bits that most of these algorithms mean them to have. Knows no declaration.
Sources: the files that nvidia-modelopt exports, and OCP Microscaling Formats 1.0 for MXFP4 and MXFP8.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import expect, finite
from modulm.interfaces.quantization import BlockFloat4, Codebook4, Float8, Weight

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_E4M3 = ("float8_e4m3fn",)
_NAN_EXPONENT = 255
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""What codes of e2m1 stand for."""
_BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of a checkpoint that is stored by some algorithm; `out_features` x `in_features` numbers."""

    checkpoint: "Checkpoint"
    module: str
    algorithm: str
    out_features: int
    in_features: int

    def name(self, last: str) -> str:
        """Return the name of one of its tensors."""
        return f"{self.module}.{last}"

    @property
    def who(self) -> str:
        """What it is called in messages."""
        return f"layer {self.module!r} of {self.out_features} x {self.in_features} numbers by {self.algorithm}"

    def expect(self, last: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
        """Refuse a tensor that is missing or another."""
        expect(self.checkpoint, self.name(last), shape, dtypes, who=self.who)

    def number(self, last: str) -> np.float32:
        """Return a tensor of one number. Raises `CheckpointError` unless it is finite and above 0."""
        shape = self.checkpoint.info(self.name(last)).shape if self._has(last) else ()
        self.expect(last, shape if shape == (1,) else (), ("float32", "bfloat16", "float16"))
        found = np.float32(finite(self.checkpoint, self.name(last)).reshape(()))
        if found <= 0:
            raise CheckpointError(
                f"Tensor {self.name(last)!r} in {self.checkpoint.path} is {found}, but a scale of {self.who} is above "
                "0. The file is damaged: fetch it again."
            )
        return found

    def groups(self, size: int) -> tuple[int, int]:
        """Return the shape of scales of groups along rows. Raises `CheckpointError` where they do not divide a row."""
        if self.in_features % size:
            raise CheckpointError(
                f"Tensor {self.name('weight')!r} in {self.checkpoint.path} has rows of {self.in_features} numbers, "
                f"which {self.algorithm}'s groups of {size} do not divide."
            )
        return self.out_features, self.in_features // size

    def exponents(self, size: int) -> np.ndarray:
        """Return E8M0 scales, one for `size` numbers, as bytes. Raises `CheckpointError` on NaN."""
        self.expect("weight_scale", self.groups(size), ("uint8", "float8_e8m0fnu"))
        found = self.checkpoint.tensor(self.name("weight_scale")).view(np.uint8)
        if (found == _NAN_EXPONENT).any():
            raise CheckpointError(
                f"Tensor {self.name('weight_scale')!r} in {self.checkpoint.path} has scales that are NaN (255): all of "
                f"the results of {self.who} would be. The file is damaged: fetch it again."
            )
        return found

    def _has(self, last: str) -> bool:
        try:
            self.checkpoint.info(self.name(last))
        except CheckpointError:
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """How one algorithm stores a layer.

    Attributes:
        rule: In a few words, for layers that a model fuses: they must agree in it.
        weight: Checks a layer's tensors and makes its weight, whose numbers are views on the file. Raises
            `CheckpointError` on names, types, shapes and scales.
        tensors: Last names of all tensors that such a layer may have beside bias and scales of activations.
    """

    rule: str
    weight: Callable[[Layer], Weight]
    tensors: tuple[str, ...]


def _per_tensor(layer: Layer) -> Float8:
    return _float8(layer, layer.number("weight_scale").reshape(1, 1), (layer.out_features, layer.in_features))


def _per_channel(layer: Layer) -> Float8:
    shape = layer.checkpoint.info(layer.name("weight_scale")).shape
    layer.expect("weight_scale", (layer.out_features, *((1,) if len(shape) == 2 else ())), ("float32",))
    scales = finite(layer.checkpoint, layer.name("weight_scale"))
    return _float8(layer, scales.reshape(-1, 1), (1, layer.in_features))


def _per_block(layer: Layer) -> Float8:
    """Blocks of 128 x 128: scales [blocks down, 1, blocks across, 1], or without the ones; one number for one block."""
    down, across = (-(-size // _BLOCK) for size in (layer.out_features, layer.in_features))
    shape = layer.checkpoint.info(layer.name("weight_scale")).shape
    allowed: list[tuple[int, ...]] = [
        (down, 1, across, 1),
        (down, across),
        *([(), (1,)] if down == across == 1 else []),
    ]
    layer.expect("weight_scale", shape if shape in allowed else allowed[0], ("float32",))
    scales = finite(layer.checkpoint, layer.name("weight_scale"))
    return _float8(layer, scales.reshape(down, across), (_BLOCK, _BLOCK))


def _mxfp8(layer: Layer) -> Float8:
    scales = np.ldexp(np.float32(1), layer.exponents(32).astype(np.int32) - 127)
    return _float8(layer, scales, (1, 32))


def _float8(layer: Layer, scales: np.ndarray, block: tuple[int, int]) -> Float8:
    shape = (layer.out_features, layer.in_features)
    layer.expect("weight", shape, _E4M3)
    data = layer.checkpoint.tensor(layer.name("weight"))
    return Float8(out_features=shape[0], in_features=shape[1], data=data, scales=scales, block=block)


def _mxfp4(layer: Layer) -> BlockFloat4:
    layer.expect("weight", (layer.out_features, layer.in_features // 2), ("uint8",))
    return BlockFloat4(
        out_features=layer.out_features,
        in_features=layer.in_features,
        group_size=32,
        codes=layer.checkpoint.tensor(layer.name("weight")),
        scales=layer.exponents(32),
    )


def _nvfp4(group_size: int) -> Callable[[Layer], Codebook4]:
    def weight(layer: Layer) -> Codebook4:
        """The tensor's own scale goes into the codebook: group scales of 8 bits then fit 16 without loss."""
        layer.expect("weight", (layer.out_features, layer.in_features // 2), ("uint8",))
        layer.expect("weight_scale", layer.groups(group_size), _E4M3)
        scales = finite(layer.checkpoint, layer.name("weight_scale"))
        return Codebook4(
            out_features=layer.out_features,
            in_features=layer.in_features,
            group_size=group_size,
            codes=layer.checkpoint.tensor(layer.name("weight")),
            scales=scales.astype(np.float16),
            codebook=FP4 * layer.number("weight_scale_2"),
        )

    return weight


def _made(rule: str, weight: Callable[[Layer], Weight], *more: str) -> Algorithm:
    return Algorithm(rule=rule, weight=weight, tensors=("weight", "weight_scale", *more))


ALGORITHMS: dict[str, Algorithm] = {
    "FP8": _made("FP8, one scale", _per_tensor),
    "FP8_PER_CHANNEL_PER_TOKEN": _made("FP8, a scale for each output", _per_channel),
    "FP8_PB_WO": _made("FP8, blocks of 128 x 128", _per_block),
    "MXFP8": _made("MXFP8", _mxfp8),
    "NVFP4": _made("NVFP4", _nvfp4(16), "weight_scale_2"),
    "W4A16_NVFP4": _made("NVFP4", _nvfp4(16), "weight_scale_2"),
    "W4A8_NVFP4_FP8": _made("NVFP4, groups of 32", _nvfp4(32), "weight_scale_2"),
    "MXFP4": _made("MXFP4", _mxfp4),
    "W4A8_MXFP4_FP8": _made("MXFP4", _mxfp4),
}
"""`quant_algo` in capitals -> how it stores a layer."""
