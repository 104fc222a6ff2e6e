"""Random weights of every canonical kind. What they are worth says `oracles/weights.py`."""

from collections.abc import Callable
from operator import methodcaller

import ml_dtypes
import numpy as np

from modulm.interfaces.quantization import (
    BlockFloat4,
    ChannelInt8,
    Codebook4,
    Dense,
    Encoded,
    Float8,
    GroupedInt,
    Reordered,
    VectorCodebook,
    Weight,
)
from modulm_testkit.oracles.weights import pack4


class RandomWeights:
    """Makes weights [out_features, in_features] from a seed; `KINDS` names them all."""

    def __init__(self, out_features: int = 16, in_features: int = 128, *, group_size: int = 32, seed: int = 0) -> None:
        self.size = {"out_features": out_features, "in_features": in_features}
        self.shape = out_features, in_features
        self.group_size, self.groups = group_size, (out_features, in_features // group_size)
        self._rng = np.random.default_rng(seed)

    def make(self, kind: str) -> Weight:
        """Return a weight of a kind."""
        return KINDS[kind](self)

    def dense(self, dtype: str) -> Weight:
        """Return plain numbers."""
        return Dense(**self.size, data=self._numbers(*self.shape).astype(getattr(ml_dtypes, dtype, dtype)))

    def grouped_int(self, bits: int, dtype: str = "float32") -> Weight:
        """Return integers of `bits` bits whose values are of order 1."""
        codes = self._rng.integers(0, 2**bits, self.shape)
        scales = (self._numbers(*self.groups) / 2**bits).astype(dtype)
        minimums = self._numbers(*self.groups).astype(dtype)
        packed = pack4(codes) if bits <= 4 else codes.astype(np.uint8)
        return GroupedInt(
            **self.size, bits=bits, group_size=self.group_size, codes=packed, scales=scales, minimums=minimums
        )

    def channel_int8(self) -> Weight:
        """Return signed bytes with a scale per row."""
        codes = self._rng.integers(-128, 128, self.shape).astype(np.int8)
        return ChannelInt8(**self.size, codes=codes, scales=self._numbers(self.shape[0]) / 100)

    def float8(self, dtype: str, block: tuple[int, int]) -> Weight:
        """Return 8-bit floats; sides of `block` that are 0 are the whole matrix's."""
        high, wide = (side or whole for side, whole in zip(block, self.shape, strict=True))
        data = self._numbers(*self.shape).astype(getattr(ml_dtypes, dtype))
        scales = self._numbers(-(-self.shape[0] // high), -(-self.shape[1] // wide))
        return Float8(**self.size, data=data, scales=scales, block=(high, wide))

    def codebook4(self) -> Weight:
        """Return indices into 16 random values."""
        codes = self._rng.integers(0, 16, self.shape)
        return Codebook4(
            **self.size, group_size=self.group_size, codes=pack4(codes), scales=self._numbers(*self.groups),
            codebook=self._numbers(16),
        )  # fmt: skip

    def vector_codebook(self) -> Weight:
        """Return places of 256 vectors of 8 small integers, with signs."""
        rows, inputs = self.shape
        codes = self._rng.integers(0, 256, (rows, inputs // 8)).astype(np.uint16)
        signs = self._rng.integers(0, 256, codes.shape).astype(np.uint8)
        book = self._rng.integers(1, 50, (256, 8)).astype(np.float32)
        return VectorCodebook(
            **self.size, group_size=self.group_size, codes=codes, signs=signs, codebook=book,
            scales=self._numbers(*self.groups) / 50,
        )  # fmt: skip

    def block_float4(self, scale_dtype: str) -> Weight:
        """Return e2m1 with scales that are exponents ("uint8", "float8_e8m0fnu") or numbers."""
        codes = self._rng.integers(0, 16, self.shape)
        if scale_dtype in ("uint8", "float8_e8m0fnu"):
            scales = self._rng.integers(122, 130, self.groups).astype(np.uint8)
            if scale_dtype != "uint8":
                scales = scales.view(ml_dtypes.float8_e8m0fnu)
        else:
            scales = self._numbers(*self.groups).astype(getattr(ml_dtypes, scale_dtype, scale_dtype))
        return BlockFloat4(**self.size, group_size=self.group_size, codes=pack4(codes), scales=scales)

    def encoded(self) -> Weight:
        """Return bytes of a format of our own."""
        data = self._rng.integers(0, 256, self.shape).astype(np.uint8)
        return Encoded(**self.size, format="odd", data=data, decode=_decode)

    def reordered(self) -> Weight:
        """Return integers of 4 bits whose inputs are stored in a random order."""
        order = self._rng.permutation(self.shape[1]).astype(np.int32)
        return Reordered(**self.size, weight=self.grouped_int(4), order=order)

    def _numbers(self, *shape: int) -> np.ndarray:
        return self._rng.normal(size=shape).astype(np.float32)


def _decode(rows: np.ndarray) -> np.ndarray:
    return rows.astype(np.float32) / 64 - 2


KINDS: dict[str, Callable[[RandomWeights], Weight]] = {
    **{f"Dense {dtype}": methodcaller("dense", dtype) for dtype in ("float32", "float16", "bfloat16")},
    **{f"GroupedInt {bits}": methodcaller("grouped_int", bits) for bits in (2, 3, 4, 5, 6, 8)},
    "GroupedInt 4, float16": methodcaller("grouped_int", 4, "float16"),
    "ChannelInt8": methodcaller("channel_int8"),
    "Float8 by tensor": methodcaller("float8", "float8_e4m3fn", (0, 0)),
    "Float8 by channel": methodcaller("float8", "float8_e5m2", (1, 0)),
    "Float8 by block": methodcaller("float8", "float8_e4m3fn", (4, 16)),
    "Float8 by odd block": methodcaller("float8", "float8_e4m3fn", (5, 24)),
    "Codebook4": methodcaller("codebook4"),
    "VectorCodebook": methodcaller("vector_codebook"),
    **{
        f"BlockFloat4, {dtype}": methodcaller("block_float4", dtype)
        for dtype in ("uint8", "float8_e8m0fnu", "float8_e4m3fn", "float32")
    },
    "Encoded": methodcaller("encoded"),
    "Reordered": methodcaller("reordered"),
}
"""Name -> maker."""
