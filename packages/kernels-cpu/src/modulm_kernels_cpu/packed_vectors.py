"""Weights of vectors out of a codebook, in the bits that files have: `VectorCodebook`.

A product with one token looks up each vector, which takes longer than reading codes of 3 or 4 bits, though these are
1.25 to 2.2 times as large. So weights are written out as such, unless MODULM_KERNEL_MEMORY is "small": then memory is
that of the file, and blocks of 32 inputs become codes of 8 bits on the way (`native/linear_int8_vectors.hpp`). What
files leave out is found again: the eighth of a vector's signs, which makes their number even, lists of which one half
is the other shifted, scales that are odd multiples. What is not so takes more memory.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from modulm.interfaces.quantization import Codebook4, VectorCodebook, Weight
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_kernels_cpu.environment import chosen
from modulm_kernels_cpu.packed_dense import PackedMatrix, with_precision
from modulm_kernels_cpu.packed_q4 import pack as pack_codes
from modulm_kernels_cpu.packed_q4 import steps_of
from modulm_kernels_cpu.scale_steps import find_steps
from modulm_kernels_cpu.weight_arrays import FLOATS, fit_half, holds, plain, require

_VECTORS, _SHIFT, _ZERO = 32, 0, 128
"""`Codes`, `Zero` and the code of 0 in linear_int8.hpp."""
_BYTES, _ODD_NIBBLES = 0, 2
"""`Multiples`."""
_HAS_ODD = np.array([byte.bit_count() % 2 for byte in range(256)], bool)
_MOST_VECTORS, _MOST_STEPS = 2048, 64
_MEMORY = {
    "fast": "weights of vectors take up to 2.2 times their file",
    "small": "they take that of their file, and decode more slowly",
}
_PIECE = 1 << 16  # numbers: what is made of them stays in a core's cache
_SIGNS = (
    (np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") << 3).view("<u8").reshape(-1)
)
"""A byte of signs as eight bytes, the highest of four bits in each."""


class _Table(NamedTuple):
    """A codebook as bytes [vectors, length] in steps of `size`, 128 being 0.

    Where `shift` is not 0 the codebook has twice as many: the same again, so much more, if bit `vectors` of a code is
    set, or if it is not (`is_first`).
    """

    numbers: np.ndarray
    size: float
    shift: int
    is_first: bool


def supports(weight: Weight) -> Support:
    """Say whether `pack` serves this weight."""
    if not isinstance(weight, VectorCodebook):
        return Rejected(f"{type(weight).__name__} is no kind of vectors")
    count, length = weight.codebook.shape
    if length not in (4, 8):
        return Rejected(f"it takes vectors of 4 or 8 inputs, not {length}")
    if weight.in_features % 8:
        return Rejected(f"{weight.in_features} inputs are no multiple of 8")
    if weight.group_size % 16 and weight.group_size != weight.in_features:
        return Rejected(f"groups of {weight.group_size} inputs are neither a multiple of 16 nor a whole row")
    table = _table(weight.codebook.tobytes(), length)
    if table is None:
        return Rejected("the codebook's numbers are not whole multiples, up to 127, of a power of two")
    if len(table.numbers) > _MOST_VECTORS:
        return Rejected(
            f"it takes up to {_MOST_VECTORS} vectors, twice as many if half are the others shifted, not {count}"
        )
    return Accepted("vectors of a codebook" if _is_small() else "vectors of a codebook, written out")


def pack(weight: Weight, precision: str = "fast") -> PackedMatrix:
    """Copy a weight that `supports` accepts into panels; its arrays are no longer needed then.

    `precision` is "fast" or "exact", as in `packed_int8.py`.
    """
    from modulm_kernels_cpu import _native

    if not isinstance(weight, VectorCodebook) or not supports(weight):
        raise TypeError(f"{type(weight).__name__} cannot be packed: {supports(weight)}.")
    _check(weight)
    written_out = None if _is_small() else _written_out(weight)
    if written_out is not None:
        return pack_codes(written_out, precision)
    rows, inputs = weight.out_features, weight.in_features
    length = weight.codebook.shape[1]
    signed = weight.signs.shape[1] > 0
    table = _table(weight.codebook.tobytes(), length)
    assert table is not None, "supports() comes before pack()"
    codes, signs = plain(weight.codes), plain(weight.signs)
    if table.is_first:
        codes = codes ^ np.uint16(len(table.numbers))
    sign_bits = 0 if not signed else 7 if holds(lambda part: not _HAS_ODD[part].any(), signs) else 8
    wide = table.shift > 0 and inputs % 32 == 0 and holds(lambda part: _is_of_four(part & len(table.numbers)), codes)
    numbers = _Scales.of(weight, table.size)
    vectors = (signs.ctypes.data, table.numbers.ctypes.data, len(table.numbers), length, sign_bits, table.shift, wide)
    shape = (rows, inputs, 0, _VECTORS, weight.group_size)
    scales = (numbers.scales.ctypes.data, 0, FLOATS[numbers.type], _SHIFT, _ZERO, numbers.steps)
    native = _native.Int8Weight(codes.ctypes.data, False, *shape, *scales, vectors=vectors)
    return with_precision(native, weight, precision)


def _check(weight: VectorCodebook) -> None:
    rows, inputs, length = weight.out_features, weight.in_features, weight.codebook.shape[1]
    require(weight.codes, (rows, inputs // length), ("uint16",), "codes")
    require(weight.signs, (rows, inputs // 8 if weight.signs.size else 0), ("uint8",), "signs")
    require(weight.scales, (rows, inputs // weight.group_size), ("float32", "float16"), "scales")
    if weight.codes.max() >= len(weight.codebook):
        raise ValueError(f"There is a code {weight.codes.max()}; the codebook has {len(weight.codebook)} vectors.")


def _is_small() -> bool:
    return chosen("MODULM_KERNEL_MEMORY", _MEMORY) == "small"


def _written_out(weight: VectorCodebook) -> Codebook4 | None:
    """Return the weight as codes of 4 bits, the highest being the sign; None where that is not enough."""
    signed = weight.signs.shape[1] > 0
    values = np.unique(weight.codebook)
    if len(values) > (8 if signed else 16):
        return None
    length = weight.codebook.shape[1]
    vectors = np.searchsorted(values, weight.codebook).astype(np.uint8).view(f"<u{length}").reshape(-1)
    codes = np.empty((weight.out_features, weight.in_features // 2), np.uint8)
    at_once = max(1, _PIECE // weight.in_features)
    for row in range(0, weight.out_features, at_once):
        piece = slice(row, row + at_once)
        eights = vectors[weight.codes[piece]].view("<u8")
        if signed:
            eights |= _SIGNS[weight.signs[piece]]
        pairs = eights.view("<u2")
        codes[piece] = (pairs | pairs >> 4).astype(np.uint8)
    shape = {"out_features": weight.out_features, "in_features": weight.in_features, "group_size": weight.group_size}
    codebook = np.zeros(16, np.float32)
    codebook[: len(values)] = values
    if signed:
        codebook[8 : 8 + len(values)] = -values
    return Codebook4(**shape, codes=codes, scales=weight.scales, codebook=codebook)


class _Scales(NamedTuple):
    """Scales in as few bytes as are exact, and `StepArguments` of bindings_linear_int8.cpp, whose array is `coarse`."""

    scales: np.ndarray
    type: str
    steps: tuple[Any, ...] = (0, _BYTES, 1.0, 0, 0)
    coarse: np.ndarray | None = None

    @classmethod
    def of(cls, weight: VectorCodebook, size: float) -> "_Scales":
        scales = plain(weight.scales.astype(np.float32) * np.float32(size))
        if fit_half(scales):
            return cls(scales.astype(np.float16), "float16")
        steps = find_steps(weight.group_size, scales)
        if steps is None:
            return cls(scales, "float32")
        (coarse,), (times,) = steps.coarse, steps.multiples
        spread = np.repeat(coarse, steps.span, axis=1)
        times = np.where(spread == 0, 1, times).astype(np.uint8)  # any multiple of 0 is
        how = _BYTES
        if (times & 1).all() and (times < 32).all():
            how, times = _ODD_NIBBLES, times[:, ::2] >> 1 | times[:, 1::2] >> 1 << 4
        return cls(plain(times), "float32", (steps.span, how, steps.unit, coarse.ctypes.data, 0), coarse)


@lru_cache(maxsize=32)
def _table(codebook: bytes, length: int) -> _Table | None:
    vectors = np.frombuffer(codebook, np.float32).reshape(-1, length)
    values, places = np.unique(vectors, return_inverse=True)
    if len(values) > _MOST_STEPS or not np.isfinite(values).all():
        return None
    steps, size, distance = steps_of(values.tolist())
    if distance or math.frexp(size)[0] != 0.5:
        return None
    numbers = np.array(steps)[places].reshape(vectors.shape)
    half = len(numbers) // 2
    shift = numbers[half:] - numbers[:half] if len(numbers) == 2 * half else numbers[:1] - numbers
    if length == 8 and half >= 256 and half.bit_count() == 1 and (shift == shift[0, 0]).all() and shift[0, 0]:
        step = int(shift[0, 0])
        first = numbers[half:] if step < 0 else numbers[:half]
        return _Table(_as_bytes(first), size, abs(step), step < 0)
    return _Table(_as_bytes(numbers), size, 0, False)


def _as_bytes(numbers: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(numbers + _ZERO, np.uint8)


def _is_of_four(bits: np.ndarray) -> bool:
    fours = bits.reshape(-1, 4)
    return bool((fours == fours[:, :1]).all())
