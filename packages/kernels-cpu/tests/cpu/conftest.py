"""Tiny random models of core's architectures as recorded graphs, run twice: by core's interpreter and natively.

Caches start as NaN (of bytes: their scales), blocks that fall out of a window become NaN again, and tables are
shuffled, so that a read of a wrong slot cannot pass. No transformers: these tests run where this package is alone.
"""

import importlib
import random
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from modulm.config import ModelConfig
from modulm.interfaces.attention import BatchLayout
from modulm.interfaces.kv_cache import KV_CACHE_DTYPES, KVScales
from modulm.interfaces.quantization import Dense
from modulm.models.index import ARCHITECTURES
from modulm.nn import Attention
from modulm.reference.attention_torch import TorchAttention
from modulm.reference.graph_torch import GraphInterpreter
from modulm.reference.linear_torch import TorchKernels
from modulm.worker.trace import trace
from modulm_kernels_cpu import packed_dense
from modulm_kernels_cpu.attention import CPUAttention
from modulm_kernels_cpu.program import NativeProgram

sys.path.insert(0, str(Path(__file__).parent))  # so that tests import what they share from this folder

CPU = torch.device("cpu")
HF = {
    "vocab_size": 211, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


@dataclass
class Twice:
    """A packed weight for the interpreter, and its parts for native code."""

    reference: object
    parts: list


def dense(modules, matrices):
    """Float32, in core's reference layout and in this package's."""
    data = torch.cat(matrices).numpy()
    weight = Dense(out_features=len(data), in_features=data.shape[1], data=data)
    return Twice(TorchKernels().pack(weight, "cpu", "float32"), [packed_dense.pack(weight)])


class RandomSource:
    """`WeightSource` of noise at scales at which it matters; `pack(modules, matrices)` makes weights of it."""

    def __init__(self, pack, *, norms_at_zero, seed=0):
        self.pack, self.norms_at_zero = pack, norms_at_zero
        self.generator = torch.Generator().manual_seed(seed)

    def has(self, name):
        return ".experts.gate_up_proj" not in name

    def tensor(self, name, shape):
        noise = 0.3 * torch.randn(shape, generator=self.generator)
        return 1 + noise if "norm" in name and not self.norms_at_zero else noise

    def packed(self, modules, out_features, in_features, *, op="linear"):
        scale = 0.3 if "embed" in modules[0] else 1.5 / in_features**0.5
        matrices = [scale * torch.randn((size, in_features), generator=self.generator) for size in out_features]
        return self.pack(modules, matrices)


def recorded(architecture, *, pack=dense, dtype="float32", cache_dtype="float32", exact=False, **hf):
    """Return the recording of a random model."""
    hf = {**HF, **hf}
    config = ModelConfig(name="tiny", hf=hf, architectures=[architecture], max_model_len=64, dtype=dtype)
    module, _, name = ARCHITECTURES[architecture].partition(":")
    with torch.device("meta"):
        model = getattr(importlib.import_module(module), name)(config)
    source = RandomSource(pack, norms_at_zero="Gemma" in architecture)
    for name, child in model.named_modules():
        if hasattr(child, "load"):
            child.load(name, source)
        if isinstance(child, Attention):
            spec = replace(child.spec, kv_cache_dtype=cache_dtype, exact=exact)
            child.spec = replace(spec, kv_scales=scales_of(spec))
    return trace(model)


def scales_of(spec):
    """Return unlike scales for the heads of a cache that has such."""
    if not KV_CACHE_DTYPES[spec.kv_cache_dtype].has_scales:
        return None
    heads = range(1, spec.num_kv_heads + 1)
    return KVScales(key=tuple(0.011 * n for n in heads), value=tuple(0.03 / n for n in heads))


@dataclass
class Sequence:
    """`known`: tokens whose number counts for rotary kinds that go by the length; 0 stands for those so far."""

    tokens: list
    known: int = 0
    start: int = 0
    tables: dict = field(default_factory=dict)


def prompt(length, seed=None):
    return random.Random(length if seed is None else seed).choices(range(3, 200), k=length)


def poison(dtype):
    """Four bytes of ones are a float32 that is no number, and each of them is none as an 8-bit float."""
    return {torch.int8: -1, torch.uint8: 255}.get(dtype, torch.nan)


def poisoned(backend, num_blocks, block, spec, dtype):
    shape = backend.kv_cache_shape(num_blocks, block, spec.num_kv_heads, spec.head_size, dtype)
    dtype = getattr(torch, KV_CACHE_DTYPES[dtype].tensor)
    return torch.full(shape, poison(dtype), dtype=dtype)


def to_host(tensor):
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


class Engine:
    """What the worker does, at its smallest. One KV group for each kind of window.

    `change` makes another graph of the native program's, to see that the comparison notices. What is not `compared` is
    not interpreted.
    """

    def __init__(self, architecture, *, block=4, num_blocks=200, change=None, compared=True, **options):
        self.compared = compared
        recording = recorded(architecture, **options)
        self.graph = graph = recording.graph
        self.block, self.layers = block, graph.layers
        self.windows = list(dict.fromkeys(spec.sliding_window for spec in self.layers.values()))
        self.groups = {name: self.windows.index(spec.sliding_window) for name, spec in self.layers.items()}
        self.backend = TorchAttention()
        self.caches = {
            name: poisoned(TorchAttention, num_blocks, block, spec, spec.kv_cache_dtype)
            for name, spec in self.layers.items()
        }
        self.native_caches = {
            name: poisoned(CPUAttention, num_blocks, block, spec, spec.kv_cache_dtype)
            for name, spec in self.layers.items()
        }
        references = {name: weight.reference for name, weight in recording.weights.items()}
        self.interpreter = GraphInterpreter(
            graph, references, recording.tensors, dict.fromkeys(self.layers, self.backend)
        )
        self.program = NativeProgram(
            graph if change is None else change(graph),
            weights={name: weight.parts for name, weight in recording.weights.items()},
            tensors={name: tensor.numpy() for name, tensor in recording.tensors.items()},
            kv_caches={name: to_host(cache) for name, cache in self.native_caches.items()},
            groups=self.groups,
            backends=dict.fromkeys(self.layers, CPUAttention()),
        )
        self.hidden_size = graph.values[graph.forward.output].shape[0]
        self.free = list(range(1, num_blocks))
        random.Random(1).shuffle(self.free)
        self.results = []

    def step(self, *work):
        """Run (sequence, number of tokens) pairs natively; return hidden states and logits of every token.

        `results` collects (got, wanted) of both, the latter from the interpreter.
        """
        inputs, layouts = self.inputs(work), self.layouts(work)
        got = self.native(inputs, layouts)
        for sequence, count in work:
            sequence.start += count
        if self.compared:
            self.results += list(zip(got, self.interpreted(inputs, layouts), strict=True))
        for sequence, _ in work:
            self.release(sequence)
        return got

    def inputs(self, work):
        spans = [(s, s.start, s.start + count) for s, count in work]
        return {
            "token_ids": np.array([t for s, first, last in spans for t in s.tokens[first:last]]),
            "positions": np.array([p for _, first, last in spans for p in range(first, last)]),
            "sequence_lengths": np.array([max(s.known, last) for s, first, last in spans for _ in range(first, last)]),
        }

    def native(self, inputs, layouts):
        self.program.forward(inputs, layouts)
        count = len(inputs["token_ids"])
        hidden = np.full((count, self.hidden_size), np.nan, np.float32)
        self.program._program.hidden(hidden)
        return hidden, self.program.logits(np.arange(count)).copy()

    def interpreted(self, inputs, layouts):
        plans = [self.backend.plan(layout, CPU) for layout in layouts]
        metadata = {name: plans[group] for name, group in self.groups.items()}
        arrays = {name: torch.from_numpy(array) for name, array in inputs.items()}
        with torch.inference_mode():
            hidden = self.interpreter.forward(arrays, self.caches, metadata)
            return hidden.numpy(), self.interpreter.logits(hidden).numpy()

    def layouts(self, work):
        for sequence, count in work:
            for window in self.windows:
                table = sequence.tables.setdefault(window, [])
                while len(table) * self.block < sequence.start + count:
                    table.append(self.free.pop())
        return [self._layout(work, window) for window in self.windows]

    def _layout(self, work, window):
        tables = [sequence.tables[window] for sequence, _ in work]
        padded = np.zeros((len(work), max(map(len, tables)) + 1), np.int32)
        for row, table in zip(padded, tables, strict=True):
            row[: len(table)] = table
        slots = [
            s.tables[window][position // self.block] * self.block + position % self.block
            for s, count in work
            for position in range(s.start, s.start + count)
        ]
        return BatchLayout(
            query_start=np.cumsum([0, *(count for _, count in work)], dtype=np.int32),
            seq_lens=np.array([s.start + count for s, count in work], np.int32),
            block_table=padded,
            slot_mapping=np.array(slots, np.int64),
            block_size=self.block,
        )

    def release(self, sequence):
        """Blocks wholly outside a window hold nothing any more; the null block takes their place."""
        for window, table in sequence.tables.items():
            for index, block in enumerate(table):
                if window is not None and block and (index + 1) * self.block <= sequence.start + 1 - window:
                    table[index] = 0
                    for name, group in self.groups.items():
                        if self.windows[group] == window:
                            for cache in (self.caches[name], self.native_caches[name]):
                                cache[block] = poison(cache.dtype)

    def error(self):
        """Greatest difference from the interpreter, in the unit in which wanted numbers vary."""
        assert min(want.std() for _, want in self.results) > 0.3, "these are too flat to prove anything"
        errors = [np.abs(got - want).max() / want.std() for got, want in self.results]
        return float("inf") if np.isnan(errors).any() else max(errors)


@pytest.fixture(scope="session", autouse=True)
def _one_thread_of_torch():
    """More only wait for each other where tensors are tiny."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def engine():
    """The class `Engine`; its first argument names an architecture, the others are keys of config.json."""
    return Engine


@pytest.fixture(scope="session")
def record():
    return recorded


@pytest.fixture(scope="session")
def sequence():
    """Return a sequence of so many random tokens; all are known in advance."""
    return lambda length, seed=None, **options: Sequence(prompt(length, seed), **{"known": length, **options})


@pytest.fixture(params=[1, 2, 3])
def num_threads(request):
    from modulm_kernels_cpu import _native

    before = _native.num_threads()
    _native.set_num_threads(request.param)
    yield request.param
    _native.set_num_threads(before)
