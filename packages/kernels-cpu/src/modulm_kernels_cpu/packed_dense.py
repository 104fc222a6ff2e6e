"""Weights of plain numbers in panels: `Dense` and `Float8` in their own width, added up in float32.

`PackedMatrix` checks what is asked of a native weight, for the other modules `packed_*` too. The layout and the
arithmetic are in `native/linear_dense.hpp`. Knows nothing of when these kernels are asked: see `provider.py`.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from modulm.interfaces.quantization import Dense, Float8, Weight
from modulm.interfaces.support import Accepted, Rejected, Support

if TYPE_CHECKING:
    import torch


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


def supports(weight: Weight) -> Support:
    """Say whether `pack` serves this weight."""
    if isinstance(weight, Dense):
        if weight.data.dtype in _element_numbers():
            return Accepted("panels of plain numbers, float32 sums")
        return Rejected(f"plain numbers of {weight.data.dtype} have no kernel")
    if isinstance(weight, Float8):
        if weight.data.dtype in _element_numbers() and weight.data.itemsize == 1:
            return Accepted("panels of 8-bit floats, float32 sums")
        return Rejected(f"8-bit floats of {weight.data.dtype} have no kernel")
    return Rejected(f"{type(weight).__name__} is not a kind of plain numbers")


def pack(weight: Weight) -> PackedMatrix:
    """Copy a `Dense` or `Float8` weight on the CPU into panels; its tensors are no longer needed then."""
    from modulm_kernels_cpu import _native

    if not isinstance(weight, Dense | Float8):
        raise TypeError(f"{type(weight).__name__} is not a kind of plain numbers.")
    data = weight.data
    shape = (weight.out_features, weight.in_features)
    require(data, shape, tuple(_element_numbers()), "data")
    if data.stride(1) != 1 or data.stride(0) < data.shape[1]:
        data = data.contiguous()
    element = _element_numbers()[data.dtype]
    if isinstance(weight, Dense):
        return PackedMatrix(_native.DenseWeight(data.data_ptr(), element, *shape, data.stride(0)), weight)
    scales = weight.scales.float().contiguous()
    scale_part = (scales.data_ptr(), scales.numel(), *weight.block)
    return PackedMatrix(_native.DenseWeight(data.data_ptr(), element, *shape, data.stride(0), *scale_part), weight)


def require(tensor: "torch.Tensor", shape: tuple[int, ...], dtypes: "tuple[torch.dtype, ...]", what: str) -> None:
    """Refuse a tensor of a weight that is not what its kind says, before its address is handed to native code."""
    if tensor.device.type != "cpu" or tensor.dtype not in dtypes:
        allowed = ", ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{what} is {tensor.dtype} on {tensor.device}; it must be one of {allowed}, on the CPU.")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{what} has shape {list(tensor.shape)}; it must be {list(shape)}.")


def float_number(tensor: "torch.Tensor", what: str) -> int:
    """Return the number by which native code knows the tensor's type (`Float` in float_types.hpp)."""
    number = _float_numbers().get(tensor.dtype)
    if number is None or tensor.device.type != "cpu":
        raise TypeError(
            f"{what} is {tensor.dtype} on {tensor.device}; these kernels take float32, float16 or bfloat16 on the CPU."
        )
    return number


@cache
def _float_numbers() -> "dict[torch.dtype, int]":
    import torch

    return {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


@cache
def _element_numbers() -> "dict[torch.dtype, int]":
    """Types of weights: `Element` in linear_dense.hpp."""
    import torch

    return {**_float_numbers(), torch.float8_e4m3fn: 3, torch.float8_e5m2: 4}
