"""Step programs: a recorded graph becomes sections of native operations, and a step one call.

Knows which native operation computes which recorded one; `native/program_operations.hpp` has the arithmetic. Imports
no torch. What it cannot run is refused with the reason, and the engine runs the model eagerly.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from modulm.errors import Unsupported
from modulm.interfaces import program as recorded
from modulm.interfaces.attention import AttentionBackend, BatchLayout
from modulm.interfaces.kernels import PackedWeight
from modulm.interfaces.program import Graph
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.attention import CPUAttention
from modulm_kernels_cpu.buffers import Place, plan_buffers
from modulm_kernels_cpu.fusion import (
    Fused,
    GatedLinear,
    GatedMLP,
    RotatedAttention,
    fused,
    readers_of,
    with_whole_tables,
)
from modulm_kernels_cpu.packed_dense import PackedMatrix

At = tuple[int, int, int]


class NativeProgram:
    """See `StepProgram` in `interfaces/kernels.py`. Raises `Unsupported` naming what cannot be run, and why.

    Args:
        graph: Of float32 values.
        weights: By name, the parts whose outputs stand side by side, all packed by this package.
        tensors: float32, by name.
        kv_caches: By layer, as `CPUAttention.kv_cache_shape` has them; 16-bit types as any of 16 bits.
        groups: KV group of each layer.
        backends: Attention backend of each layer.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        weights: Mapping[str, Sequence[PackedWeight]],
        tensors: Mapping[str, np.ndarray],
        kv_caches: Mapping[str, np.ndarray],
        groups: Mapping[str, int],
        backends: Mapping[str, AttentionBackend],
    ) -> None:
        _check(graph, backends)
        self._layers = next(iter(backends.values()), CPUAttention())
        self._parts = {name: _native_parts(name, parts) for name, parts in weights.items()}
        self._tensors = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
        self._kv_caches, self._groups, self._graph = kv_caches, groups, graph
        head = graph.logits.ops[-1] if graph.logits.ops else None
        if not isinstance(head, recorded.LMHead) or head.outputs != (graph.logits.output,):
            raise Unsupported("The last operation must be 'lm_head'.")
        self._values = with_whole_tables(graph.values, graph.forward)
        forward, states, _ = self._section(fused(graph.values, graph.forward))
        before = fused(
            graph.values, recorded.Section(inputs=graph.logits.inputs, ops=graph.logits.ops[:-1], output=head.inputs[0])
        )
        logits, rows, entry = self._section(before)
        logits.lm_head(self._parts[head.weight], head.divisor, head.soft_cap or 0.0, rows)
        size = math.prod(graph.values[graph.forward.output].shape)
        self._program = _native.Program(forward, logits, states, entry[graph.logits.inputs["hidden"]], size)
        self._vocab_size = graph.values[graph.logits.output].shape[0]
        self._logits = np.empty((0, self._vocab_size), np.float32)
        self.num_operations = len(graph.forward.ops) + len(graph.logits.ops)

    def forward(self, inputs: Mapping[str, np.ndarray], layouts: Sequence[BatchLayout]) -> None:
        """See `StepProgram`."""
        plans = [self._layers.plan(layout, None) for layout in layouts]  # type: ignore[arg-type]
        self._program.forward(inputs["token_ids"], inputs["positions"], inputs.get("sequence_lengths"), plans)

    def logits(self, index: np.ndarray) -> np.ndarray:
        """See `StepProgram`."""
        count = len(index)
        if len(self._logits) < count:
            # Twice as many each time, and the old ones go first: else every sequence more would leave a hole.
            self._logits = np.empty((0, 0), np.float32)
            self._logits = np.empty((1 << (count - 1).bit_length(), self._vocab_size), np.float32)
        out = self._logits[:count]
        if count:
            self._program.logits(index, out)
        return out

    @property
    def size_bytes(self) -> int:
        """Bytes of its buffers, which grow with the largest step so far."""
        return int(self._program.size_bytes) + self._logits.nbytes

    def _section(self, section: Fused) -> tuple[Any, At, dict[int, At]]:
        """Return the native section, where its output is, and where each value is."""
        plan = plan_buffers(self._values, section)
        places = {index: _at(place) for index, place in plan.places.items()}
        native = _native.Section(list(plan.sizes), list(plan.local))
        views = {i for op in section.ops if isinstance(op, recorded.Split | recorded.Reshape) for i in op.outputs}
        self._alone = {index for index, count in readers_of(section).items() if count == 1} - views
        begins, lasts = {s.start for s in plan.stretches}, {s.stop - 1 for s in plan.stretches}
        for number, op in enumerate(section.ops):
            tag = op.__struct_config__.tag
            add = getattr(self, f"_{tag}", None)
            if add is None:
                raise Unsupported(f"The operation {tag!r} has no native counterpart where it stands.")
            if number in begins:
                native.begin_stretch()
            add(native, op, *(places.get(index) for index in (*op.inputs, *op.outputs)))
            if number in lasts:
                native.end_stretch()
        return native, places[section.output], places

    def _size(self, op: Any) -> int:
        return math.prod(self._values[op.outputs[0]].shape)

    def _bias(self, name: str | None) -> np.ndarray | None:
        return None if name is None else self._tensors[name]

    def _embedding(self, native: Any, op: recorded.Embedding, _: None, out: At) -> None:
        parts = self._parts[op.weight]
        if len(parts) > 1:
            raise Unsupported(f"Embedding {op.weight!r} is in several parts.")
        native.embedding(parts[0][0], out)

    def _linear(self, native: Any, op: recorded.Linear, x: At, out: At) -> None:
        native.linear(self._parts[op.weight], self._bias(op.bias), x, out)

    def _gated_linear(self, native: Any, op: GatedLinear, x: At, out: At) -> None:
        native.gated_linear(self._parts[op.weight], self._bias(op.bias), op.function, x, out)

    def _gated_mlp(self, native: Any, op: GatedMLP, x: At, out: At) -> None:
        gate_up, down = self._parts[op.weight], self._parts[op.down]
        native.gated_mlp(gate_up, self._bias(op.bias), op.function, down, self._bias(op.down_bias), x, out)

    def _gated_activation(self, native: Any, op: recorded.GatedActivation, x: At, out: At) -> None:
        native.gated_activation(op.function, self._size(op), x, out)

    def _rms_norm(self, native: Any, op: recorded.RMSNorm, x: At, out: At) -> None:
        weight = self._tensors[op.weight]
        native.rms_norm(weight, self._size(op) // len(weight), op.eps, op.unit_offset, x, out)

    def _add(self, native: Any, op: recorded.Add, a: At, b: At, out: At) -> None:
        native.add(self._size(op), a, b, out, [index in self._alone for index in op.inputs])

    def _scale(self, native: Any, op: recorded.Scale, x: At, out: At) -> None:
        native.scale(self._size(op), op.factor, x, out)

    def _split(self, native: Any, op: recorded.Split, *places: At) -> None:
        """A view: its place says all."""

    _reshape = _split

    def _rotary_tables(self, native: Any, op: recorded.RotaryTables, *places: At | None) -> None:
        cos, sin = places[-2:]
        base = op.dynamic
        dynamic = None if base is None else (base.theta, base.factor, base.stated)
        native.rotary_tables(op.inverse, op.scaling, op.long_inverse, op.long_from, dynamic, cos, sin)

    def _attention(self, native: Any, op: Any, query: At, key: At, value: At, out: At, *tables: Any) -> None:
        spec = self._graph.layers[op.layer]
        native.attention(
            self._kv_caches[op.layer],
            spec.kv_cache_dtype,
            spec.num_heads,
            spec.scale,
            spec.sliding_window or 0,
            spec.soft_cap or 0.0,
            spec.exact,
            self._groups[op.layer],
            self._bias(op.sinks),
            () if spec.kv_scales is None else spec.kv_scales.key,
            () if spec.kv_scales is None else spec.kv_scales.value,
            query,
            key,
            value,
            out,
            *tables,
        )

    def _rotated_attention(self, native: Any, op: RotatedAttention, *places: At) -> None:
        query, key, value, cos, sin, out = places
        width = self._values[op.inputs[3]].shape[0]
        self._attention(native, op, query, key, value, out, width, cos, sin)

    def _sparse_moe(self, native: Any, op: recorded.SparseMoE, x: At, out: At) -> None:
        gate_up = self._biased(op.gate_up, op.gate_up_bias)
        down = self._biased(op.down, op.down_bias)
        router = (self._parts[op.router], self._bias(op.router_bias))
        native.sparse_moe(router, gate_up, down, op.top_k, op.function, op.normalised, x, out)

    def _biased(self, weights: Sequence[str], biases: Sequence[str]) -> list[tuple[Any, np.ndarray | None]]:
        named = zip(weights, biases or (None,) * len(weights), strict=True)
        return [(self._parts[weight], self._bias(bias)) for weight, bias in named]


def _check(graph: Graph, backends: Mapping[str, AttentionBackend]) -> None:
    others = sorted({value.dtype for value in graph.values} - {"float32", "int64"})
    if others:
        raise Unsupported(f"Activations are {others[0]}; native programs compute in float32 (--dtype float32).")
    for name, backend in backends.items():
        if not isinstance(backend, CPUAttention):
            raise Unsupported(f"Layer {name!r} has attention backend {backend.name!r}, not {CPUAttention.name!r}.")


def _native_parts(name: str, parts: Sequence[PackedWeight]) -> list[tuple[Any, bool]]:
    """Return the native weights, and whether each multiplies exactly."""
    found = []
    for part in parts:
        if not isinstance(part, PackedMatrix):
            raise Unsupported(f"Weight {name!r} is not packed by these kernels but is a {type(part).__name__}.")
        found.append(part.native)
    return found


def _at(place: Place) -> At:
    return (place.buffer, place.offset, place.stride)
