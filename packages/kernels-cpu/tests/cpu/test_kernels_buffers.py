"""Where values of step programs lie: no buffer is given away while it is read. And which operations are joined."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modulm.interfaces.program import (
    Add,
    Attention,
    Embedding,
    GatedActivation,
    Linear,
    Reshape,
    Rotary,
    Scale,
    Section,
    Split,
    Value,
)
from modulm_kernels_cpu.buffers import plan_buffers
from modulm_kernels_cpu.fusion import GatedLinear, GatedMLP, RotatedAttention, fused, with_whole_tables

ROWS, BLOCK = 5, 2


def simulate(values, section, plan):
    """Write a mark of its own into every number of a value; each reader must find it untouched.

    Stretches are run block of rows by block of rows, with local buffers that last as long.
    """
    whole = [np.full(ROWS * size, -1) for size in plan.sizes]
    owner = {}

    def row(index, number, local):
        place, size = plan.places[index], math.prod(values[index].shape)
        assert place.offset + size <= place.stride <= plan.sizes[place.buffer]
        memory = local[place.buffer] if plan.local[place.buffer] else whole[place.buffer]
        return memory[number * place.stride + place.offset :][:size]

    def placed(indices):
        return [index for index in indices if values[index].dtype != "int64"]

    def run(op, numbers, local):
        if isinstance(op, Add) and len(numbers) > 1:  # row by row, as a sum may lie on what is added
            for number in numbers:
                run(op, range(number, number + 1), local)
            return
        for number in numbers:
            for index in placed(op.inputs):
                assert (row(index, number, local) == (owner[index] * ROWS + number)).all(), (op, index)
        for index in op.outputs:
            owner[index] = owner[op.inputs[0]] if isinstance(op, Split | Reshape) else index
            if owner[index] == index:
                for number in numbers:
                    row(index, number, local)[:] = index * ROWS + number
        for number in numbers:
            for read in placed(op.inputs):
                if isinstance(op, Add) and plan.places[read] == plan.places[op.outputs[0]]:
                    continue
                if isinstance(op, GatedMLP) and plan.places[read].buffer == plan.places[op.outputs[0]].buffer:
                    continue
                if not isinstance(op, Split | Reshape):
                    expected = owner[read] * ROWS + number
                    assert (row(read, number, local) == expected).all(), "an output lies on an input"

    for index in section.inputs:
        owner[index] = index
        for number in range(ROWS):
            row(index, number, {})[:] = index * ROWS + number
    stretches = {stretch.start: stretch for stretch in plan.stretches}
    at = 0
    while at < len(section.ops):
        stretch = stretches.get(at, range(at, at + 1))
        blocks = range(0, ROWS, BLOCK if at in stretches else ROWS)
        for first in blocks:
            local = (
                {buffer: np.full(ROWS * size, -1) for buffer, size in enumerate(plan.sizes)} if at in stretches else {}
            )
            for number in stretch:
                run(section.ops[number], range(first, min(first + blocks.step, ROWS)), local)
        at = stretch.stop
    for number in range(ROWS):
        assert (row(section.output, number, {}) == (owner[section.output] * ROWS + number)).all()


KINDS = ["split", "reshape", "scale", "many", "embedding", "linear", "gated", "rotated", "add"]


@st.composite
def programs(draw):
    """Sections of all that is told apart, in any order; ids and positions are values 0 and 1."""
    sizes = st.integers(1, 9)
    values = [Value((), "int64")] * 2
    values += [Value((draw(sizes),), "float32") for _ in range(draw(st.integers(1, 3)))]
    inputs, floats, ops = {str(index): index for index in range(len(values))}, list(range(2, len(values))), []

    def add(op, read, shapes, **options):
        outputs = tuple(range(len(values), len(values) + len(shapes)))
        values.extend(Value(shape, "float32") for shape in shapes)
        floats.extend(outputs)
        ops.append(op(inputs=tuple(read), outputs=outputs, **options))
        return outputs

    for _ in range(draw(st.integers(1, 25))):
        read = [draw(st.sampled_from(floats)) for _ in range(3)]
        shape = values[read[0]].shape
        kind, made = draw(st.sampled_from(KINDS)), (draw(sizes),)
        if kind == "split" and len(shape) == 1 and shape[0] > 1:
            at = draw(st.integers(1, shape[0] - 1))
            add(Split, read[:1], [(at,), (shape[0] - at,)])
        elif kind == "reshape":
            add(Reshape, read[:1], [(1, *shape)])
        elif kind == "embedding":
            add(Embedding, [draw(st.integers(0, 1))], [made], weight="w")
        elif kind == "linear":
            add(Linear, read[:1], [made], weight="w")
        elif kind == "gated":
            (both,) = add(Linear, read[:1], [(2 * made[0],)], weight="w")
            add(GatedActivation, [both], [made], function="silu")
            if draw(st.booleans()):
                add(Linear, floats[-1:], [(draw(sizes),)], weight="w")
        elif kind == "rotated":
            query, key = add(Rotary, [*read, draw(st.sampled_from(floats))], [shape, values[read[1]].shape])
            add(Attention, [query, key, draw(st.sampled_from(floats))], [shape], layer="a")
        elif kind == "add":
            add(Add, [read[0], draw(st.sampled_from([i for i in floats if values[i].shape == shape]))], [shape])
        elif kind == "many":
            add(Attention, read, [made, (draw(sizes),)], layer="b")
        else:
            add(Scale, read[:1], [shape], factor=1.0)
    return values, Section(inputs=inputs, ops=tuple(ops), output=draw(st.sampled_from(floats)))


@given(programs())
@settings(max_examples=300, deadline=None)
def test_no_value_is_overwritten_while_it_is_read(program):
    values, section = program
    joined = fused(values, section)
    plan = plan_buffers(values, joined)
    simulate(values, joined, plan)
    integers = {index for index, value in enumerate(values) if value.dtype == "int64"}
    assert not integers & set(plan.places)


@given(programs())
@settings(max_examples=100, deadline=None)
def test_joining_leaves_what_is_read(program):
    """Everything that an operation reads was made before, by what the section had, in its order."""
    values, section = program
    joined = fused(values, section)
    known, before = set(section.inputs.values()), {op.outputs: op for op in section.ops}
    for op in joined.ops:
        assert known.issuperset(op.inputs)
        known.update(op.outputs)
        assert op is before[op.outputs] or isinstance(op, GatedLinear | GatedMLP | RotatedAttention)
    assert section.output in known


def example(*ops, output):
    values = [Value((8,), "float32")] * 12
    return values, Section(inputs={"hidden": 0, "cos": 1, "sin": 2}, ops=ops, output=output)


LINEAR = Linear(inputs=(0,), outputs=(3,), weight="w", bias="b")
GATED = GatedActivation(inputs=(3,), outputs=(4,), function="relu")
DOWN = Linear(inputs=(4,), outputs=(9,), weight="d", bias="e")
ROTARY = Rotary(inputs=(0, 0, 1, 2), outputs=(5, 6))
ATTENTION = Attention(inputs=(5, 6, 0), outputs=(7,), layer="a", sinks="s")


def test_what_one_operation_reads_is_joined_with_it():
    joined = fused(*example(LINEAR, GATED, ROTARY, ATTENTION, output=7))
    assert joined.ops == (
        GatedLinear(inputs=(0,), outputs=(4,), weight="w", bias="b", function="relu"),
        RotatedAttention(inputs=(0, 0, 0, 1, 2), outputs=(7,), layer="a", sinks="s"),
    )


def test_what_a_second_linear_layer_alone_reads_is_joined_with_it_too():
    mlp = GatedMLP(inputs=(0,), outputs=(9,), weight="w", bias="b", function="relu", down="d", down_bias="e")
    assert fused(*example(LINEAR, GATED, DOWN, output=9)).ops == (mlp,)
    gated, again = (
        GatedLinear(inputs=(0,), outputs=(4,), weight="w", bias="b", function="relu"),
        Scale(inputs=(4,), outputs=(8,), factor=2.0),
    )
    assert fused(*example(LINEAR, GATED, DOWN, output=4)).ops == (gated, DOWN)
    assert fused(*example(LINEAR, GATED, DOWN, again, output=9)).ops == (gated, DOWN, again)


@pytest.mark.parametrize(
    ("ops", "output"),
    [
        ((LINEAR, GATED), 3),
        ((LINEAR, GATED, Scale(inputs=(3,), outputs=(8,), factor=2.0)), 8),
        ((LINEAR, Scale(inputs=(3,), outputs=(8,), factor=2.0), GATED), 4),
        ((ROTARY, ATTENTION), 6),
        ((ROTARY, ATTENTION, Scale(inputs=(5,), outputs=(8,), factor=2.0)), 7),
        ((ROTARY, Attention(inputs=(6, 5, 0), outputs=(7,), layer="a")), 7),
        ((ROTARY, Attention(inputs=(5, 0, 0), outputs=(7,), layer="a")), 7),
        ((ROTARY, Attention(inputs=(5, 6, 5), outputs=(7,), layer="a")), 7),
    ],
)
def test_what_others_read_too_stays(ops, output):
    assert fused(*example(*ops, output=output)).ops == ops


def planned(recording):
    """Return the joined section of the forward pass, its values, and its plan."""
    graph = recording.graph
    values = with_whole_tables(graph.values, graph.forward)
    section = fused(values, graph.forward)
    return values, section, plan_buffers(values, section)


def test_the_simulation_notices_a_buffer_that_is_given_away_early(record):
    values, section, plan = planned(record("LlamaForCausalLM"))
    residual, normed = section.ops[0].outputs[0], section.ops[2].outputs[0]
    plan.places[normed] = plan.places[residual]
    with pytest.raises(AssertionError):
        simulate(values, section, plan)


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "Gemma2ForCausalLM", "GraniteForCausalLM", "MixtralForCausalLM"]
)
def test_buffers_are_few_whatever_the_number_of_layers(architecture, record):
    sizes, options = [], {"num_local_experts": 2, "sliding_window": 9, "head_dim": 16}
    for count in (2, 12):
        options["layer_types"] = ["full_attention", "sliding_attention"] * (count // 2)
        values, section, plan = planned(record(architecture, num_hidden_layers=count, **options))
        simulate(values, section, plan)
        local = [size for size, is_local in zip(plan.sizes, plan.local, strict=True) if is_local]
        sizes.append((plan.sizes, sum(local)))
    assert sizes[0] == sizes[1]
    # The residual stream and what is added to it, cos and sin in whole, and QKV with attention's output.
    assert sum(sizes[1][0]) - sizes[1][1] <= 3 * 64 + 2 * 16 + 128 + 64
    assert sizes[1][1] <= 2 * 64 + 96  # what is between, sums where they were added up
