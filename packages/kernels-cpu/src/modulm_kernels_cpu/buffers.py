"""Where the values of a step program lie: few buffers, each used again as soon as nobody reads what it holds.

Knows shapes, no memory: native code allocates, for as many rows as a step may have. Called once per section.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from modulm.interfaces.program import Reshape, Split, Value


class Operations(Protocol):
    """What is asked of a section: its inputs that have a place, its operations in order, what it leaves."""

    @property
    def inputs(self) -> Sequence[int]:
        """Values that are there before the first operation."""

    @property
    def ops(self) -> Sequence[Any]:
        """Operations with `inputs` and `outputs`; `Split` and `Reshape` are views."""

    @property
    def output(self) -> int:
        """The value that is read after the last operation."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Row r of a value begins at number `offset` + r * `stride` of a buffer and is contiguous.

    A view has another offset than the value it shows, and that one's stride.
    """

    buffer: int
    offset: int
    stride: int


@dataclass(frozen=True, kw_only=True)
class BufferPlan:
    """`sizes`: numbers per row of every buffer. `places`: where each value is, inputs and output included."""

    sizes: tuple[int, ...]
    places: dict[int, Place]


def plan_buffers(values: Sequence[Value], section: Operations) -> BufferPlan:
    """Give every value of a section a place for as long as it, or a view of it, is read; the output's stays.

    No output of an operation overlaps any of its inputs, except views. Free buffers are taken best fit first. Integers
    are what the step brings and have no place.
    """
    views = dict(_views(values, section.ops))  # value -> (what it shows, offset)
    owner = {index: index for index in section.inputs}
    owner |= {index: index for op in section.ops for index in op.outputs}
    for index, (shown, _) in views.items():  # in order, so that a view of a view finds the owner
        owner[index] = owner[shown]
    dies = _deaths(section, owner)
    sizes: list[int] = []
    free: list[int] = []
    places: dict[int, Place] = {}

    def take(index: int) -> None:
        size = math.prod(values[index].shape)
        if free:
            best = min(free, key=lambda b: (sizes[b] < size, abs(sizes[b] - size)))
            free.remove(best)
            sizes[best] = max(sizes[best], size)
        else:
            best = len(sizes)
            sizes.append(size)
        places[index] = Place(buffer=best, offset=0, stride=size)

    for index in section.inputs:
        take(index)
    free.extend(places[index].buffer for index in section.inputs if dies[index] < 0)
    for number, op in enumerate(section.ops):
        for index in op.outputs:
            if index in views:
                shown, offset = views[index]
                base = places[shown]
                places[index] = Place(buffer=base.buffer, offset=base.offset + offset, stride=base.stride)
            else:
                take(index)
        dead = {owner[i] for i in (*op.inputs, *op.outputs) if i in owner and dies[owner[i]] == number}
        free.extend(places[index].buffer for index in sorted(dead))
    return BufferPlan(sizes=tuple(sizes), places=places)


def _views(values: Sequence[Value], ops: Sequence[Any]) -> Iterator[tuple[int, tuple[int, int]]]:
    for op in ops:
        if isinstance(op, Split | Reshape):
            offset = 0
            for index in op.outputs:
                yield index, (op.inputs[0], offset)
                offset += math.prod(values[index].shape)


def _deaths(section: Operations, owner: dict[int, int]) -> dict[int, int]:
    """Return for each owner the last operation that touches it or a view of it; -1 for an input nobody reads."""
    dies = dict.fromkeys((owner[index] for index in section.inputs), -1)
    for number, op in enumerate(section.ops):
        for index in (*op.inputs, *op.outputs):
            if index in owner:
                dies[owner[index]] = number
    dies[owner[section.output]] = len(section.ops)
    return dies
