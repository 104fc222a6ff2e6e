"""Integers with scales: `pack-quantized`, 1 to 8 bits in words of 32, and `int-quantized`, a byte each.

They become `GroupedInt`; bytes with a scale per row and no zero points, `ChannelInt8`. Knows no names but its own.
"""

from typing import Any, ClassVar

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.quantization import ChannelInt8, GroupedInt, Reordered, Weight
from modulm_quant_compressed_tensors.layer import FLOATS, SCALE, ZERO_POINT, Layer

_ORDER, _SHAPE, _PACKED = "weight_g_idx", "weight_shape", "weight_packed"
_ROWS_AT_ONCE = 1024


class Integers(Layer):
    """What both have in common. Codes are unsigned here: 2^(bits - 1) above the stored ones."""

    zero_point_shape: tuple[int, int]

    def check(self) -> None:
        """See base class."""
        self.check_codes()
        self.expect_scales(*FLOATS)
        if not self.arguments.symmetric:
            self.check_zero_points()
        if self.is_reordered:
            self.expect(_ORDER, (self.shape[1],), "int32", "int64")
            self._check_order()

    def check_codes(self) -> None:
        """Check the tensor of codes."""
        raise NotImplementedError

    def check_zero_points(self) -> None:
        """Check the tensor of zero points."""
        raise NotImplementedError

    def codes(self) -> np.ndarray:
        """Return unsigned codes, uint8 [out_features, in_features]."""
        raise NotImplementedError

    def zero_points(self) -> np.ndarray:
        """Return the codes that stand for zero, uint8 of the scales' shape."""
        raise NotImplementedError

    @property
    def is_reordered(self) -> bool:
        """Whether a group's inputs may lie apart; for a group that is a whole row that would say nothing."""
        return self.arguments.strategy == "group" and (self.arguments.reordered or _ORDER in self.found)

    def _check_order(self) -> None:
        order = self.tensor(_ORDER)
        counts = np.bincount(order[order >= 0], minlength=self.scale_shape[1])
        if (order == -1).all() or (len(counts) == self.scale_shape[1] and (counts == self.arguments.group_size).all()):
            return
        raise CheckpointError(
            f"Tensor '{self.module}.{_ORDER}' in {self.checkpoint.path} does not give each of {self.scale_shape[1]} "
            f"groups {self.arguments.group_size} of the {self.shape[1]} inputs. Fetch the checkpoint again."
        )

    def weight(self) -> Weight:
        """See base class."""
        rows, columns = self.shape
        common: dict[str, Any] = {"out_features": rows, "in_features": columns}
        scales = self.scales()
        scales = np.broadcast_to(scales, (rows, scales.shape[1]))
        if self.arguments.symmetric and self.arguments.bits == 8 and self.arguments.strategy != "group":
            codes = (self.codes() ^ 128).view(np.int8)
            return ChannelInt8(**common, codes=codes, scales=scales[:, 0].astype(np.float32))
        zeros: Any = 1 << (self.arguments.bits - 1)
        if not self.arguments.symmetric:
            zeros = np.broadcast_to(self.zero_points(), scales.shape)
            zeros = zeros.flat[0] if (zeros == zeros.flat[0]).all() else zeros
        scales, minimums = _minimums(np.ascontiguousarray(scales), zeros)
        order = self._order()
        bits = max(self.arguments.bits, 5 if columns % 2 else 2)  # two codes to a byte, or one
        weight = GroupedInt(
            **common,
            bits=bits,
            group_size=self.arguments.group_size or columns,
            codes=self.packed_codes(order) if bits <= 4 else self._ordered(order),
            scales=scales,
            minimums=minimums,
        )
        return weight if order is None else Reordered(**common, weight=weight, order=order)

    def packed_codes(self, order: np.ndarray | None) -> np.ndarray:
        """Return codes of at most 4 bits in this order, two to a byte, the first in the low half."""
        codes = self._ordered(order)
        return codes[:, ::2] | codes[:, 1::2] << 4

    def _ordered(self, order: np.ndarray | None) -> np.ndarray:
        return self.codes() if order is None else self.codes()[:, order]

    def _order(self) -> np.ndarray | None:
        """Return the inputs as groups have them; None where they are in order."""
        if not self.is_reordered:
            return None
        order = np.argsort(self.tensor(_ORDER), kind="stable").astype(np.int32)
        return None if (order == np.arange(len(order))).all() else order


class Packed(Integers):
    """Words of 32 bits along a row, the first code in the lowest bits; a code may lie in two words."""

    suffixes: ClassVar[tuple[str, ...]] = (_PACKED, _SHAPE, _ORDER, ZERO_POINT)

    def check_codes(self) -> None:
        """See base class."""
        self.expect(_PACKED, (self.shape[0], self._num_words(self.shape[1])), "int32")
        self.expect(_SHAPE, (2,), "int64", "int32")
        stored = self.tensor(_SHAPE).tolist()
        if stored != list(self.shape):
            raise CheckpointError(
                f"Tensor '{self.module}.{_SHAPE}' in {self.checkpoint.path} is {stored}, but the model needs "
                f"{list(self.shape)}. Check that config and weights belong together."
            )

    def check_zero_points(self) -> None:
        """See base class."""
        self.expect(ZERO_POINT, (self._num_words(self.shape[0]), self.scale_shape[1]), "int32")

    def codes(self) -> np.ndarray:
        """See base class."""
        return unpacked(self.tensor(_PACKED), self.arguments.bits, self.shape[1])

    def packed_codes(self, order: np.ndarray | None) -> np.ndarray:
        """See base class. What is stored already, where it is 4 bits in order."""
        if self.arguments.bits != 4 or order is not None:
            return super().packed_codes(order)
        return self.tensor(_PACKED).view(np.uint8)[:, : self.shape[1] // 2]

    def zero_points(self) -> np.ndarray:
        """See base class."""
        words = np.ascontiguousarray(self.tensor(ZERO_POINT).T)
        return unpacked(words, self.arguments.bits, self.shape[0]).T

    def _num_words(self, count: int) -> int:
        return -(-count * self.arguments.bits // 32)


class Bytes(Integers):
    """Signed bytes, whatever the number of bits."""

    suffixes: ClassVar[tuple[str, ...]] = ("weight", _ORDER, ZERO_POINT)

    def check_codes(self) -> None:
        """See base class."""
        self.expect("weight", self.shape, "int8")
        if self.arguments.symmetric and ZERO_POINT in self.found and self.tensor(ZERO_POINT).any():
            raise CheckpointError(
                f"Tensor '{self.module}.{ZERO_POINT}' in {self.checkpoint.path} is not zero, although its layer is "
                "declared symmetric. Check that config and weights belong together."
            )

    def check_zero_points(self) -> None:
        """See base class."""
        stored = self.checkpoint.info(f"{self.module}.{SCALE}").shape
        self.expect(ZERO_POINT, stored, "int8")

    def codes(self) -> np.ndarray:
        """See base class."""
        return self._unsigned(self.tensor("weight"))

    def zero_points(self) -> np.ndarray:
        """See base class."""
        return self._unsigned(self.tensor(ZERO_POINT)).reshape(self.scale_shape)

    def _unsigned(self, numbers: np.ndarray) -> np.ndarray:
        return numbers.view(np.uint8) + np.uint8(1 << (self.arguments.bits - 1))


def unpacked(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return `count` codes of each row of words, uint8."""
    packed = np.ascontiguousarray(words).view(np.uint8)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = packed if bits == 8 else (packed[..., None] >> shifts & (1 << bits) - 1).reshape(len(packed), -1)
        return codes[:, :count]
    codes = np.empty((len(packed), count), np.uint8)
    for row in range(0, len(packed), _ROWS_AT_ONCE):
        part = slice(row, row + _ROWS_AT_ONCE)
        single = np.unpackbits(packed[part], axis=1, count=count * bits, bitorder="little").reshape(-1, count, bits)
        codes[part] = np.packbits(single, axis=2, bitorder="little")[..., 0]
    return codes


def _minimums(scales: np.ndarray, zeros: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return scales and -zeros * scales in one type that holds both: float16 only where it does so exactly."""
    wide = scales.astype(np.float32)
    minimums = wide * -np.asarray(zeros, np.float32)
    with np.errstate(over="ignore"):
        half = minimums.astype(np.float16)
    return (scales, half) if scales.dtype == np.float16 and (half == minimums).all() else (wide, minimums)
