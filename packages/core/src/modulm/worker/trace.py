"""Recording: a loaded model, called once with `Traced` values, becomes a `Graph` and the weights that it names.

Knows no architecture. What a model does beyond `nn` layers is refused with the place named; then it runs eagerly.
"""

import traceback
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from modulm.errors import Unsupported
from modulm.interfaces.kernels import PackedWeight
from modulm.interfaces.model import ForwardBatch
from modulm.interfaces.program import Graph, Section, Value
from modulm.nn.rotary import SEQUENCE_LENGTHS
from modulm.nn.traced import Recorder, Traced
from modulm.worker.recorded import Recorded
from modulm.worker.weights import parts_of


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A graph, and what its names stand for in this process."""

    graph: Graph
    weights: dict[str, PackedWeight]
    tensors: dict[str, torch.Tensor]

    def to_host(self) -> Recorded:
        """Return it without torch, for native code; its plain tensors become float32 arrays."""
        return Recorded(
            graph=self.graph,
            weights={name: parts_of(packed) for name, packed in self.weights.items()},
            tensors={name: tensor.float().numpy(force=True) for name, tensor in self.tensors.items()},
        )


def trace(model: nn.Module) -> Recording:
    """Record `forward` and `compute_logits` of a `CausalLM` with its weights loaded.

    Calls both once, with values that stand for tensors.

    Raises:
        Unsupported: Something cannot be recorded; the message names it, and the module it happened in.
    """
    recorder = Recorder({id(module): name for name, module in model.named_modules()})
    try:
        forward, hidden = _forward(model, recorder)
        logits = _logits(model, recorder, hidden)
    except Exception as error:  # a model is foreign code, and may stumble over what is no tensor in any way
        raise Unsupported(f"The model cannot be recorded: {_where(model, error)}: {error}.") from error
    tensors = {name: Value(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in recorder.tensors.items()}
    graph = Graph(
        values=tuple(recorder.values),
        forward=forward,
        logits=logits,
        weights=recorder.sizes,
        tensors=tensors,
        layers={name: layer.spec for name, layer in recorder.layers.items()},
    )
    return Recording(graph=graph, weights=recorder.weights, tensors=recorder.tensors)


def _forward(model: Any, recorder: Recorder) -> tuple[Section, Traced]:
    inputs = {name: recorder.value((), "int64") for name in ("token_ids", "positions", SEQUENCE_LENGTHS)}
    batch = ForwardBatch(
        positions=inputs["positions"],  # type: ignore[arg-type]
        kv_caches={},
        metadata={},
        max_seq_len=inputs[SEQUENCE_LENGTHS],  # type: ignore[arg-type]  # refuses whatever is done with it
        extra={SEQUENCE_LENGTHS: inputs[SEQUENCE_LENGTHS]},
    )
    hidden = model.forward(inputs["token_ids"], batch)
    ops = tuple(recorder.ops)
    used = {index for op in ops for index in op.inputs}
    if inputs[SEQUENCE_LENGTHS].index not in used:
        del inputs[SEQUENCE_LENGTHS]
    return Section(inputs={name: one.index for name, one in inputs.items()}, ops=ops, output=hidden.index), hidden


def _logits(model: Any, recorder: Recorder, hidden: Traced) -> Section:
    recorder.ops = []
    rows = recorder.value(hidden.row_shape, hidden.row_dtype)
    logits = model.compute_logits(rows)
    return Section(inputs={"hidden": rows.index}, ops=tuple(recorder.ops), output=logits.index)


def _where(model: nn.Module, error: Exception) -> str:
    """Return name and class of the innermost module that was running."""
    names = {id(module): name for name, module in model.named_modules()}
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = frame.f_locals.get("self")
        if id(module) in names:
            return f"{names[id(module)] or 'the model'} ({type(module).__name__})"
    return type(model).__name__
