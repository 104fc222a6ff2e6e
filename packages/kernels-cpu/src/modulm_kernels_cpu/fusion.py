"""From a recorded graph to what native code runs in one go: operations are joined where what is between has one reader.

Knows the vocabulary of `interfaces/program.py` and adds three words to it; knows no memory. `program.py` calls it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from modulm.interfaces.program import (
    Activation,
    Attention,
    GatedActivation,
    Linear,
    Operation,
    Rotary,
    RotaryTables,
    Section,
    Value,
)


class RotatedAttention(Operation, frozen=True, kw_only=True, tag="rotated_attention"):
    """`Rotary`, then `Attention`: inputs are query, key, value, cos, sin."""

    layer: str
    sinks: str | None


class GatedLinear(Operation, frozen=True, kw_only=True, tag="gated_linear"):
    """`Linear`, then `GatedActivation`."""

    weight: str
    bias: str | None
    function: Activation


class GatedMLP(Operation, frozen=True, kw_only=True, tag="gated_mlp"):
    """`GatedLinear`, then `Linear` by `down`."""

    weight: str
    bias: str | None
    function: Activation
    down: str
    down_bias: str | None


@dataclass(frozen=True, kw_only=True)
class Fused:
    """A section after joining; see `buffers.Operations`. `inputs` are those that are no integers."""

    inputs: tuple[int, ...]
    ops: tuple[Any, ...]
    output: int


def fused(values: Sequence[Value], section: Section) -> Fused:
    """Join rotation with attention, linear layers with gated activations, and those with the linear layer after."""
    readers = readers_of(section)
    makers = {index: op for op in section.ops for index in op.outputs}
    joined: dict[int, Any] = {}  # id of an operation -> what replaces it, None for nothing
    for op in section.ops:
        maker, is_read_once = makers.get(op.inputs[0]), readers[op.inputs[0]] == 1
        before = joined.get(id(maker), maker)
        if isinstance(op, Attention) and isinstance(maker, Rotary) and op.inputs[:2] == maker.outputs:
            if all(readers[index] == 1 for index in maker.outputs):
                query, key, cos, sin = maker.inputs
                rotated = RotatedAttention(
                    inputs=(query, key, op.inputs[2], cos, sin), outputs=op.outputs, layer=op.layer, sinks=op.sinks
                )
                joined |= {id(maker): None, id(op): rotated}
        elif isinstance(op, GatedActivation) and isinstance(before, Linear) and is_read_once:
            gated = GatedLinear(
                inputs=before.inputs, outputs=op.outputs, weight=before.weight, bias=before.bias, function=op.function
            )
            joined |= {id(maker): None, id(op): gated}
        elif isinstance(op, Linear) and isinstance(before, GatedLinear) and is_read_once:
            joined |= {id(maker): None, id(op): _mlp(before, op)}
    ops = tuple(new for op in section.ops if (new := joined.get(id(op), op)) is not None)
    placed = tuple(index for index in section.inputs.values() if values[index].dtype != "int64")
    return Fused(inputs=placed, ops=ops, output=section.output)


def readers_of(section: Section | Fused) -> Counter[int]:
    """Return how often each value is read, by operations and as the section's output."""
    readers = Counter(index for op in section.ops for index in op.inputs)
    readers[section.output] += 1
    return readers


def _mlp(gated: GatedLinear, down: Linear) -> GatedMLP:
    return GatedMLP(
        inputs=gated.inputs,
        outputs=down.outputs,
        weight=gated.weight,
        bias=gated.bias,
        function=gated.function,
        down=down.weight,
        down_bias=down.bias,
    )


def with_whole_tables(values: Sequence[Value], section: Section) -> list[Value]:
    """Return the values with tables of cos and sin as wide as what they rotate, their halves alike."""
    wide = list(values)
    for op in section.ops:
        if isinstance(op, RotaryTables):
            for index in op.outputs:
                wide[index] = Value((2 * values[index].shape[0],), values[index].dtype)
    return wide
