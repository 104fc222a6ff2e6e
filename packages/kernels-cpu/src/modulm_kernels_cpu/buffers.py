"""Where the values of a step program lie: few buffers, each used again as soon as nobody reads what it holds.

Operations in a row that leave tokens apart are a stretch: native code computes it in blocks of rows where there are
many. What lives inside of one stretch has buffers apart, which then are never whole.
Knows shapes, no memory: native code allocates, for as many rows as a step may have. Called once per section.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from modulm.interfaces.program import Add, GatedActivation, Linear, Reshape, RMSNorm, Scale, Split, Value
from modulm_kernels_cpu.fusion import GatedLinear, GatedMLP

Apart = Linear | GatedLinear | GatedMLP | GatedActivation | RMSNorm | Add | Scale | Split | Reshape


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
    """`sizes`: numbers per row of every buffer. `places`: where each value is, inputs and output included.

    `local` says which buffers hold nothing from one stretch to the next; `stretches` are numbers of operations.
    """

    sizes: tuple[int, ...]
    places: dict[int, Place]
    local: tuple[bool, ...]
    stretches: tuple[range, ...]


def plan_buffers(values: Sequence[Value], section: Operations) -> BufferPlan:
    """Give every value of a section a place for as long as it, or a view of it, is read; the output's stays.

    No output of an operation overlaps any of its inputs, except views, sums and what `GatedMLP` has packed before it
    writes. In a stretch a value that is not of it alone lies where another was only if rows of both lie alike. Free
    buffers are taken best fit first. Integers are what the step brings and have no place.
    """
    views = dict(_views(values, section.ops))  # value -> (what it shows, offset)
    owner = {index: index for index in section.inputs}
    owner |= {index: index for op in section.ops for index in op.outputs}
    for index, (shown, _) in views.items():  # in order, so that a view of a view finds the owner
        owner[index] = owner[shown]
    stretches = tuple(_stretches(section.ops))
    end_of = {number: stretch.stop for stretch in stretches for number in stretch}
    births, deaths = _lives(section, owner)
    sizes: list[int] = []
    local: list[bool] = []
    free: list[int] = []
    alike: dict[int, int] = {}  # buffer that became free in this stretch -> size of a row there
    places: dict[int, Place] = {}

    def take(index: int) -> None:
        size, is_local = math.prod(values[index].shape), _is_inside(births[index], deaths[index], end_of)
        found = [b for b in free if local[b] == is_local and (is_local or alike.get(b, size) == size)]
        if found:
            best = min(found, key=lambda b: (sizes[b] < size, abs(sizes[b] - size)))
            free.remove(best)
            sizes[best] = max(sizes[best], size)
        else:
            best = len(sizes)
            sizes.append(size)
            local.append(is_local)
        places[index] = Place(buffer=best, offset=0, stride=size)

    def leave(indices: Sequence[int]) -> None:
        for index in indices:
            free.append(places[index].buffer)
            alike[places[index].buffer] = places[index].stride

    for index in section.inputs:
        take(index)
    gone: dict[int, list[int]] = {}  # operation -> values that nobody reads after it
    for index, last in deaths.items():
        gone.setdefault(last, []).append(index)
    free.extend(places[index].buffer for index in gone.get(-1, ()))
    for number, op in enumerate(section.ops):
        if number not in end_of or number - 1 not in end_of:
            alike.clear()
        ending = sorted(gone.get(number, ()))
        read = {owner[index] for index in op.inputs if index in owner} if _may_overwrite(op, places) else set()
        leave([index for index in ending if index in read])
        for index in op.outputs:
            if index in views:
                shown, offset = views[index]
                base = places[shown]
                places[index] = Place(buffer=base.buffer, offset=base.offset + offset, stride=base.stride)
            else:
                take(index)
        leave([index for index in ending if index not in read])
    return BufferPlan(sizes=tuple(sizes), places=places, local=tuple(local), stretches=stretches)


def _may_overwrite(op: Any, places: dict[int, Place]) -> bool:
    """Return whether an operation may write where it reads what nobody reads after it."""
    if not isinstance(op, Add):
        return isinstance(op, GatedMLP)
    size = places[op.inputs[0]].stride
    return all(places[index] == Place(buffer=places[index].buffer, offset=0, stride=size) for index in op.inputs)


def _stretches(ops: Sequence[Any]) -> Iterator[range]:
    """Yield the longest runs of operations that leave tokens apart, where there is more than one."""
    begin = 0
    for number, op in enumerate((*ops, None)):
        if not isinstance(op, Apart):
            if number - begin > 1:
                yield range(begin, number)
            begin = number + 1


def _is_inside(birth: int, death: int, end_of: dict[int, int]) -> bool:
    """Return whether a value is made and read in one stretch alone."""
    return birth in end_of and end_of[birth] == end_of.get(death)


def _views(values: Sequence[Value], ops: Sequence[Any]) -> Iterator[tuple[int, tuple[int, int]]]:
    for op in ops:
        if isinstance(op, Split | Reshape):
            offset = 0
            for index in op.outputs:
                yield index, (op.inputs[0], offset)
                offset += math.prod(values[index].shape)


def _lives(section: Operations, owner: dict[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """Return for each owner the operation that makes it, and the last that touches it or a view of it.

    Inputs are made by number -1, and so is the end of those that nobody reads.
    """
    births = dict.fromkeys((owner[index] for index in section.inputs), -1)
    deaths = dict(births)
    for number, op in enumerate(section.ops):
        for index in (*op.inputs, *op.outputs):
            if index in owner:
                births.setdefault(owner[index], number)
                deaths[owner[index]] = number
    deaths[owner[section.output]] = len(section.ops)
    return births, deaths
