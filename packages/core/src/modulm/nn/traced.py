"""`Traced`: what stands for a tensor while a model is recorded; layers of `nn` meet it in `forward`.

A layer asks `isinstance(x, Traced)` and calls `x.apply(Operation, ...)`; the few plain operators that models use on
hidden states are methods here. Anything else is refused by name, so that nothing is recorded wrongly. Knows no torch.
"""

import math
from collections.abc import Sequence
from typing import Any, NoReturn

from modulm.errors import Unsupported
from modulm.interfaces.program import Add, Op, Operation, Reshape, Scale, Split, Value


class Recorder:
    """The graph so far, and the weights that it names.

    Attributes:
        names: `id` of every module of the model -> its name.
        weights, tensors, layers: Name -> packed weight, plain tensor, `Attention`: what operations refer to.
        sizes: Name of each of `weights` -> (out_features, in_features).
    """

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.weights: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}
        self.sizes: dict[str, tuple[int, int]] = {}
        self.layers: dict[str, Any] = {}

    def value(self, shape: tuple[int, ...], dtype: str) -> "Traced":
        """Return a new value."""
        self.values.append(Value(shape, dtype))
        return Traced(self, len(self.values) - 1)

    def weight(self, module: Any, packed: Any, sizes: tuple[int, int], attribute: str = "weight") -> str:
        """Return the name of a packed weight that `module` holds under `attribute`."""
        name = f"{self.names[id(module)]}.{attribute}"
        self.weights[name], self.sizes[name] = packed, sizes
        return name

    def tensor(self, module: Any, tensor: Any, attribute: str = "weight") -> str:
        """Return the name of a plain tensor that `module` holds under `attribute`."""
        name = f"{self.names[id(module)]}.{attribute}"
        self.tensors[name] = tensor
        return name


class Traced:
    """[n, *shape] of which only shape and dtype are known, both of one row: n is free."""

    def __init__(self, recorder: Recorder, index: int) -> None:
        self.recorder = recorder
        self.index = index
        value = recorder.values[index]
        self.row_shape = value.shape
        self.row_dtype = value.dtype

    def apply(
        self, op: type[Operation], *others: "Traced", shape: Any = None, dtype: Any = None, **attributes: Any
    ) -> Any:
        """Append an operation on self and `others`; return its one output, which is like self unless said."""
        output = (self.row_shape if shape is None else shape, dtype or self.row_dtype)
        return self.apply_many(op, *others, outputs=[output], **attributes)[0]

    def apply_many(
        self, op: type[Operation], *others: "Traced", outputs: Sequence[tuple[tuple[int, ...], str]], **attributes: Any
    ) -> tuple["Traced", ...]:
        """Append an operation with several `outputs`, each (shape, dtype)."""
        made = tuple(self.recorder.value(*output) for output in outputs)
        inputs = (self.index, *(other.index for other in others))
        recorded: Any = op(inputs=inputs, outputs=tuple(one.index for one in made), **attributes)
        self.recorder.ops.append(recorded)
        return made

    def __add__(self, other: Any) -> "Traced":
        if not isinstance(other, Traced) or (other.row_shape, other.row_dtype) != (self.row_shape, self.row_dtype):
            refuse("adding what is not of the same shape and dtype")
        return self.apply(Add, other)

    def __mul__(self, factor: Any) -> "Traced":
        if not isinstance(factor, int | float):
            refuse("multiplying by what is not a number")
        return self.apply(Scale, factor=float(factor))

    __rmul__ = __mul__

    def split(self, sizes: Sequence[int], dim: int = 0) -> tuple["Traced", ...]:
        """See `torch.Tensor.split`; of the last dimension, into given sizes, where there is one per row."""
        if isinstance(sizes, int) or dim not in (-1, 1) or self.row_shape != (sum(sizes),):
            refuse("splitting but along the whole row")
        return self.apply_many(Split, outputs=[((size,), self.row_dtype) for size in sizes])

    def unflatten(self, dim: int, sizes: Sequence[int]) -> "Traced":
        """See `torch.Tensor.unflatten`; of the last dimension."""
        if dim not in (-1, len(self.row_shape)):
            refuse("unflattening any but the last dimension")
        *before, last = self.row_shape
        known = math.prod(size for size in sizes if size != -1)
        shape = (*before, *(last // known if size == -1 else size for size in sizes))
        if math.prod(shape) != math.prod(self.row_shape):
            refuse(f"unflattening {last} into {tuple(sizes)}")
        return self.apply(Reshape, shape=shape)

    def __getattr__(self, name: str) -> NoReturn:
        refuse(f"{name!r} of a hidden state")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        refuse(f"{getattr(function, '__name__', function)!r} of torch")


def refuse(what: str) -> NoReturn:
    """Raise `Unsupported`: this cannot be recorded."""
    raise Unsupported(f"{what} cannot be recorded")


def _refusal(name: str) -> Any:
    def method(self: Traced, *_: Any) -> NoReturn:
        refuse(f"{name!r} of a hidden state")

    return method


# Python looks these up on the class: without them a condition would silently take one branch.
_NAMES = (
    "bool len iter getitem contains int float index eq ne lt le gt ge "
    "sub rsub radd truediv neg pow matmul"
)  # fmt: skip
for _name in _NAMES.split():
    setattr(Traced, f"__{_name}__", _refusal(f"__{_name}__"))
