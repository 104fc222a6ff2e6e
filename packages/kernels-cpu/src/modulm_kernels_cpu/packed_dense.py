"""Weights of plain numbers in panels: `Dense` and `Float8` in their own width, added up in float32.

"fast" rounds activations to bfloat16 for weights of bfloat16 and of 8 bits where the processor multiplies that; "exact"
never does.
`PackedMatrix` checks what is asked of a native weight, for the other modules `packed_*` too. The layout and the
arithmetic are in `native/linear_dense.hpp`. Packing takes arrays and imports no torch. Knows nothing of when these
kernels are asked: see `provider.py`.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from modulm.interfaces.quantization import Dense, Float8, Weight
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_kernels_cpu.library import native
from modulm_kernels_cpu.weight_arrays import FLOATS, plain, require

if TYPE_CHECKING:
    import torch

_ELEMENTS = {**FLOATS, "float8_e4m3fn": 3, "float8_e5m2": 4}
"""Types of weights: `Element` in linear_dense.hpp."""


class NativeWeight(Protocol):
    """What the native classes of packed weights have in common. Addresses and strides are in bytes and in numbers."""

    size_bytes: int

    def linear(self, x: int, x_type: int, stride: int, tokens: int, out: int, out_type: int, isa: str = "", /) -> None:
        """Write x @ W.T to `out`, row-major."""

    def rows(self, index: int, count: int, out: int, out_type: int, /) -> None:
        """Write W[index] to `out`."""


class PackedMatrix:
    """A `PackedWeight` whose numbers are in native memory. `isa` names an instruction set, for tests."""

    def __init__(self, native: NativeWeight, weight: Weight) -> None:
        self._native = native
        self._out_features = weight.out_features
        self._in_features = weight.in_features

    def linear(self, x: "torch.Tensor", isa: str = "") -> "torch.Tensor":
        """See `PackedWeight`. x is float32, float16 or bfloat16 on the CPU."""
        number = float_number(x, "x")
        if x.ndim != 2 or x.shape[1] != self._in_features:
            raise ValueError(f"x has shape {list(x.shape)}; this weight takes [num_tokens, {self._in_features}].")
        count = x.shape[0]
        out = x.new_empty((count, self._out_features))
        if count:
            stride, step = x.stride()
            if step != 1 or stride < self._in_features:
                x = x.contiguous()
                stride = self._in_features
            self._native.linear(x.data_ptr(), number, stride, count, out.data_ptr(), number, isa)
        return out

    def rows(self, index: "torch.Tensor", dtype: "torch.dtype") -> "torch.Tensor":
        """See `PackedWeight`. Raises `IndexError` for an index that is negative or too large."""
        import torch

        if index.dtype != torch.int64 or index.device.type != "cpu":
            raise TypeError(f"index is {index.dtype} on {index.device}; row numbers are int64 on the CPU.")
        if index.ndim != 1:
            raise ValueError(f"index has shape {list(index.shape)}; row numbers are a vector.")
        out = torch.empty((len(index), self._in_features), dtype=dtype)
        if len(index):
            index = index.contiguous()
            self._native.rows(index.data_ptr(), len(index), out.data_ptr(), float_number(out, "the result"))
        return out

    @property
    def native(self) -> tuple[Any, bool]:
        """The native weight, and whether it is to be asked for exact products: what step programs take."""
        inner = getattr(self._native, "inner", None)
        return (self._native, False) if inner is None else (inner, True)

    @property
    def size_bytes(self) -> int:
        """See `PackedWeight`."""
        return self._native.size_bytes


class _Exact:
    """A native weight whose products take activations as they are."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.rows = native.rows
        self.size_bytes: int = native.size_bytes

    def linear(self, *arguments: Any) -> None:
        """See `NativeWeight`."""
        self._native.linear(*arguments, exact=True)

    @property
    def inner(self) -> Any:
        """The native weight itself."""
        return self._native


def with_precision(native: Any, weight: Weight, precision: str) -> PackedMatrix:
    """Return the packed weight, of a native one whose `linear` takes `exact`."""
    if precision not in ("fast", "exact"):
        raise ValueError(f"Precision {precision!r} is unknown. There are 'fast' and 'exact'.")
    return PackedMatrix(_Exact(native) if precision == "exact" else native, weight)


def supports(weight: Weight, precision: str = "fast") -> Support:
    """Say whether `pack` serves this weight, and how products are computed."""
    name = weight.data.dtype.name if isinstance(weight, Dense | Float8) else ""
    rounds = precision == "fast" and name in _ELEMENTS and native().DenseWeight.rounds(_ELEMENTS[name])
    how = "activations rounded to bfloat16, " if rounds else ""
    if isinstance(weight, Dense):
        if name in FLOATS:
            return Accepted(f"panels of plain numbers, {how}float32 sums")
        return Rejected(f"plain numbers of {name} have no kernel")
    if isinstance(weight, Float8):
        if name not in _ELEMENTS or name in FLOATS:
            return Rejected(f"8-bit floats of {name} have no kernel")
        wide = weight.block[1]
        if wide % 32 and wide < weight.in_features:
            return Rejected(f"blocks of {wide} inputs are neither a multiple of 32 nor a whole row")
        return Accepted(f"panels of 8-bit floats, {how}float32 sums")
    return Rejected(f"{type(weight).__name__} is not a kind of plain numbers")


def pack(weight: Weight, precision: str = "fast") -> PackedMatrix:
    """Copy a `Dense` or `Float8` weight into panels; its arrays are no longer needed then.

    `precision` is "fast", or "exact": activations are not rounded.
    """
    from modulm_kernels_cpu import _native

    if not isinstance(weight, Dense | Float8):
        raise TypeError(f"{type(weight).__name__} is not a kind of plain numbers.")
    shape = (weight.out_features, weight.in_features)
    require(weight.data, shape, _ELEMENTS, "data")
    data = _with_whole_rows(weight.data)
    place = (data.ctypes.data, _ELEMENTS[data.dtype.name], *shape, data.strides[0] // data.itemsize)
    if isinstance(weight, Dense):
        return with_precision(_native.DenseWeight(*place), weight, precision)
    scales = plain(weight.scales.astype(np.float32))
    blocks = (scales.ctypes.data, scales.size, *weight.block)
    return with_precision(_native.DenseWeight(*place, *blocks), weight, precision)


def _with_whole_rows(data: np.ndarray) -> np.ndarray:
    """Return the matrix itself where native code can read it: rows in one piece, a whole number of numbers apart."""
    row, number = data.strides
    is_readable = number == data.itemsize and row >= data.shape[1] * number and row % number == 0
    return data if is_readable and data.flags.aligned else plain(data)


def float_number(tensor: "torch.Tensor", what: str) -> int:
    """Return the number by which native code knows the tensor's type."""
    number = _torch_floats().get(tensor.dtype)
    if number is None or tensor.device.type != "cpu":
        raise TypeError(
            f"{what} is {tensor.dtype} on {tensor.device}; these kernels take float32, float16 or bfloat16 on the CPU."
        )
    return number


@cache
def _torch_floats() -> "dict[torch.dtype, int]":
    import torch

    return {getattr(torch, name): number for name, number in FLOATS.items()}
