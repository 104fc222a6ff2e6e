"""Providers whose programs are wrong in one way each: core's interpreter of graphs as a `StepProgram`."""

import numpy as np
import torch
from contract import Contract

from modulm.errors import Unsupported
from modulm.reference.attention_torch import TorchAttention
from modulm.reference.graph_torch import GraphInterpreter
from modulm.reference.linear_torch import TorchKernels
from modulm.worker.weights import Parts
from modulm_testkit.program import ProgramConformance


class Interpreted:
    """A program that is interpreted."""

    def __init__(self, graph, *, weights, tensors, kv_caches, groups, backends):
        whole = {
            name: parts[0] if len(parts) == 1 else Parts(parts, [len(part._data) for part in parts])
            for name, parts in self.parts(weights).items()
        }
        arrays = {name: torch.from_numpy(array) for name, array in tensors.items()}
        self.graph, self.groups, self.backend = graph, groups, next(iter(backends.values()))
        self.caches = {name: torch.from_numpy(cache) for name, cache in kv_caches.items()}
        self.interpreter = GraphInterpreter(graph, whole, arrays, backends)

    def parts(self, weights):
        return weights

    @torch.inference_mode()
    def forward(self, inputs, layouts):
        plans = [self.backend.plan(layout, torch.device("cpu")) for layout in layouts]
        metadata = {name: plans[group] for name, group in self.groups.items()}
        given = {name: torch.from_numpy(array) for name, array in inputs.items()}
        hidden = self.interpreter.forward(given, self.caches, metadata)
        self.hidden = hidden.flip(0) if self.spoils(inputs["positions"].tolist()) else hidden

    @torch.inference_mode()
    def logits(self, index):
        return self.interpreter.logits(self.hidden[torch.from_numpy(index)]).numpy()

    def spoils(self, positions):
        return False


class Programs(TorchKernels):
    """Runs programs of `made`."""

    runs_programs = True
    made = Interpreted

    def program(self, graph, **parts):
        return self.made(graph, **parts)


program = Contract("program", ProgramConformance, "provider", Programs, backend=TorchAttention)


def mutant(test):
    """The decorated program breaks the test."""

    def add(made):
        program.mutant(test)(type(made.__name__, (Programs,), {"made": made, "__doc__": made.__doc__}))
        return made

    return add


def is_one(positions):
    return positions == list(range(positions[0], positions[0] + len(positions)))


@mutant("test_runs_something")
class RefusesAll(Interpreted):
    """Every graph is refused."""

    def __init__(self, graph, **parts):
        raise Unsupported("no code was generated")


@mutant("test_models")
class KnowsOneWindow(Interpreted):
    """All layers are taken to have the first layer's KV group."""

    def __init__(self, graph, *, groups, **parts):
        super().__init__(graph, groups=dict.fromkeys(groups, 0), **parts)


@mutant("test_whole_prompts")
class ReversesPrompts(Interpreted):
    """A prompt of 37 tokens in one step gives its results in reverse order."""

    def spoils(self, positions):
        return len(positions) == 37


@mutant("test_chunked_prompts")
class ReversesChunks(Interpreted):
    """Chunks of seven or thirteen tokens give their results in reverse order."""

    def spoils(self, positions):
        return is_one(positions) and positions[0] > 0 and len(positions) in (7, 11)


@mutant("test_batches")
class ReversesBatches(Interpreted):
    """Steps of several sequences give their results in reverse order."""

    def spoils(self, positions):
        return not is_one(positions)


@mutant("test_prefix_hits")
class ReversesSecondHalves(Interpreted):
    """What begins at position 20 gives its results in reverse order."""

    def spoils(self, positions):
        return is_one(positions) and positions[0] == 20


@mutant("test_logits_of_some_rows")
class SortsRows(Interpreted):
    """Logits come in the order of rows."""

    def logits(self, index):
        return super().logits(np.sort(index))


@mutant("test_weights_stand_side_by_side")
class SwapsParts(Interpreted):
    """Parts stand in reverse order."""

    def parts(self, weights):
        return {name: parts[::-1] for name, parts in weights.items()}


@mutant("test_programs_live_side_by_side")
class SharesHiddenStates(Interpreted):
    """Hidden states lie in memory that all programs share, and the last one that was made owns."""

    last = None

    def __init__(self, graph, **parts):
        super().__init__(graph, **parts)
        SharesHiddenStates.last = self

    def spoils(self, positions):
        return SharesHiddenStates.last is not self and len(positions) > 1
