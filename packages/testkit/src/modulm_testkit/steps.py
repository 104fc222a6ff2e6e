"""What the worker does with a model, at its smallest: blocks, layouts, steps; and the ways to cut a prompt into them.

Caches start as NaN, freed blocks become NaN again and tables are shuffled, so a read of a wrong slot cannot pass.
Attention and kernels are core's own. Knows no expected values: `oracles/logits.py` has them.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from modulm.config import ModelConfig
from modulm.errors import CheckpointError
from modulm.interfaces.attention import BatchLayout
from modulm.interfaces.kernels import PackedWeight
from modulm.interfaces.model import ForwardBatch
from modulm.interfaces.program import Graph
from modulm.interfaces.quantization import Dense, Weight
from modulm.nn.attention import Attention
from modulm.nn.rotary import SEQUENCE_LENGTHS
from modulm.reference.attention_torch import TorchAttention
from modulm.reference.graph_torch import GraphInterpreter
from modulm.reference.linear_torch import TorchKernels
from modulm.worker.trace import trace

BLOCK = 4
_CPU = torch.device("cpu")


class Tensors:
    """`WeightSource` over a dictionary.

    Attributes:
        read: Names of the tensors that were asked for.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], dtype: str = "float32") -> None:
        self.tensors = tensors
        self.read: set[str] = set()
        self._dtype = dtype

    def has(self, name: str) -> bool:
        """See `WeightSource`."""
        return name in self.tensors

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See `WeightSource`."""
        return self._float32(name, shape).to(getattr(torch, self._dtype))

    def packed(self, modules: list[str], out_features: list[int], in_features: int, *, op: str = "linear") -> Any:
        """See `WeightSource`."""
        sizes = zip(modules, out_features, strict=True)
        return self._pack(torch.cat([self._float32(f"{one}.weight", (size, in_features)) for one, size in sizes]))

    def packed_slice(
        self, name: str, shape: tuple[int, int, int], index: int, *, transposed: bool = False, in_turn: bool = False
    ) -> Any:
        """See `WeightSource`."""
        count, rows, columns = shape
        data = self._float32(name, (count, columns, rows) if transposed else shape)[index]
        data = data.T if transposed else data
        return self._pack(torch.cat([data[::2], data[1::2]]) if in_turn else data.contiguous())

    def _float32(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self.tensors:
            raise CheckpointError(f"Tensor {name!r} is missing.")
        tensor = self.tensors[name]
        if tuple(tensor.shape) != tuple(shape):
            raise CheckpointError(f"Tensor {name!r} has shape {list(tensor.shape)}, but {list(shape)} is asked for.")
        self.read.add(name)
        return tensor.float()

    def _pack(self, data: torch.Tensor) -> Any:
        weight = Dense(out_features=data.shape[0], in_features=data.shape[1], data=data.numpy())
        return KeptWeight(weight, TorchKernels().pack(weight, "cpu", self._dtype))


class RandomTensors(Tensors):
    """Numbers at scales at which they matter, drawn when they are asked for; it has whatever is asked for."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__({})
        self._generator = torch.Generator().manual_seed(seed)

    def has(self, name: str) -> bool:
        """See `WeightSource`; experts are not stacked here."""
        return ".experts.gate_up_proj" not in name

    def _float32(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        noise = torch.randn(shape, generator=self._generator)
        if "norm" in name:
            return 1 + 0.3 * noise
        return 0.3 * noise if len(shape) == 1 or "embed" in name else noise * 1.5 / shape[-1] ** 0.5


@dataclass
class KeptWeight:
    """Core's packed weight, with what it was packed from."""

    weight: Weight
    packed: PackedWeight

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """See `PackedWeight`."""
        return self.packed.linear(x)

    def rows(self, index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """See `PackedWeight`."""
        return self.packed.rows(index, dtype)

    @property
    def size_bytes(self) -> int:
        """See `PackedWeight`."""
        return self.packed.size_bytes


@dataclass
class Sequence:
    """Tokens of a sequence, and how far it has come.

    Attributes:
        known: Tokens whose number counts for rotary kinds that go by the length; 0 stands for those so far.
        start: Tokens that are in the cache.
        tables: Block table by window.
    """

    tokens: list[int]
    known: int = 0
    start: int = 0
    tables: dict[int | None, list[int]] = field(default_factory=dict)


class Stepper:
    """A model with its weights and caches.

    Args:
        model_class: A `CausalLM`.
        hf: config.json's contents.
        tensors: Those of the checkpoint, by name, or a source of them.
        recorded: Whether its recorded graph, written out and read back, runs beside it and must give the same bits.

    Attributes:
        model: The model.
        source: Where its weights came from.
    """

    def __init__(
        self,
        model_class: Any,
        hf: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor] | Tensors,
        *,
        dtype: str = "float32",
        num_blocks: int = 160,
        recorded: bool = False,
    ) -> None:
        self.model = built(model_class, hf, dtype)
        self.source = tensors if isinstance(tensors, Tensors) else Tensors(tensors, dtype)
        fill(self.model, self.source)
        self.layers = [module for module in self.model.modules() if isinstance(module, Attention)]
        self.backend, self.caches = TorchAttention(), {}
        for layer in self.layers:
            layer.bind(self.backend)
            shape = TorchAttention.kv_cache_shape(num_blocks, BLOCK, layer.spec.num_kv_heads, layer.spec.head_size)
            self.caches[layer.name] = torch.full(shape, torch.nan)
        self.windows = list(dict.fromkeys(layer.spec.sliding_window for layer in self.layers))
        self.interpreter = None
        self.recorded_caches = {name: cache.clone() for name, cache in self.caches.items()} if recorded else {}
        if recorded:
            self.recording = trace(self.model)
            self.graph = Graph.from_dict(json.loads(json.dumps(self.recording.graph.to_dict())))
            backends: dict[str, Any] = dict.fromkeys(self.caches, self.backend)
            self.interpreter = GraphInterpreter(self.graph, self.recording.weights, self.recording.tensors, backends)
        self.free = list(range(1, num_blocks))
        random.Random(1).shuffle(self.free)

    def step(self, *work: tuple[Sequence, int], release: bool = True) -> list[torch.Tensor]:
        """Run (sequence, number of tokens) pairs; return logits of every token, by sequence."""
        for sequence, count in work:
            for window in self.windows:
                table = sequence.tables.setdefault(window, [])
                while len(table) * BLOCK < sequence.start + count:
                    table.append(self.free.pop())
        self.layouts = {window: self._layout(work, window) for window in self.windows}
        plans = {window: self.backend.plan(layout, _CPU) for window, layout in self.layouts.items()}
        lengths = [max(s.known, s.start + count) for s, count in work for _ in range(count)]
        batch = ForwardBatch(
            positions=torch.tensor([position for s, count in work for position in range(s.start, s.start + count)]),
            kv_caches=self.caches,
            metadata={layer.name: plans[layer.spec.sliding_window] for layer in self.layers},
            max_seq_len=max(s.start + count for s, count in work),
            extra={SEQUENCE_LENGTHS: torch.tensor(lengths)},
        )
        tokens = torch.tensor([token for s, count in work for token in s.tokens[s.start : s.start + count]])
        with torch.inference_mode():
            hidden = self.model(tokens, batch)
            logits: torch.Tensor = self.model.compute_logits(hidden)
            self.observe(tokens, batch, hidden, logits)
        for sequence, count in work:
            sequence.start += count
            if release:
                self._release(sequence)
        return list(logits.split([count for _, count in work]))

    def observe(self, tokens: torch.Tensor, batch: ForwardBatch, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        """See what a step gave: the recorded graph must give the same."""
        if self.interpreter is not None:
            inputs = {"token_ids": tokens, "positions": batch.positions, **batch.extra}
            found = self.interpreter.forward(inputs, self.recorded_caches, batch.metadata)
            assert torch.equal(found, hidden), "the recorded graph gives other hidden states"
            assert torch.equal(self.interpreter.logits(found), logits), "the recorded graph gives other logits"

    def _layout(self, work: tuple[tuple[Sequence, int], ...], window: int | None) -> BatchLayout:
        tables = [sequence.tables[window] for sequence, _ in work]
        padded = np.zeros((len(work), max(map(len, tables))), np.int32)
        for row, table in zip(padded, tables, strict=True):
            row[: len(table)] = table
        slots = [
            s.tables[window][position // BLOCK] * BLOCK + position % BLOCK
            for s, count in work
            for position in range(s.start, s.start + count)
        ]
        return BatchLayout(
            query_start=np.cumsum([0, *(count for _, count in work)], dtype=np.int32),
            seq_lens=np.array([s.start + count for s, count in work], np.int32),
            block_table=padded,
            slot_mapping=np.array(slots, np.int64),
            block_size=BLOCK,
        )

    def _release(self, sequence: Sequence) -> None:
        """Blocks wholly outside a window go back to the pool, poisoned; the null block takes their place."""
        for window, table in sequence.tables.items():
            for index, block in enumerate(table):
                if window is not None and block and (index + 1) * BLOCK <= sequence.start + 1 - window:
                    table[index] = 0
                    for layer in self.layers:
                        if layer.spec.sliding_window == window:
                            for caches in (self.caches, self.recorded_caches):
                                if layer.name in caches:
                                    caches[layer.name][block] = torch.nan


def built(model_class: Any, hf: Mapping[str, Any], dtype: str = "float32") -> Any:
    """Build a model as the worker does: its parameters without memory."""
    names = list(hf["architectures"])
    config = ModelConfig(name="tiny", hf=dict(hf), architectures=names, max_model_len=64, dtype=dtype)
    with torch.device("meta"), torch.inference_mode():
        return model_class(config)


def fill(model: Any, source: Tensors) -> None:
    """Let every layer load its weights, then read by name what no layer loaded."""
    with torch.inference_mode():
        for name, module in model.named_modules():
            if hasattr(module, "load"):
                module.load(name, source)
        for name, parameter in list(model.named_parameters()):
            if parameter.is_meta:
                owner, _, key = name.rpartition(".")
                filled = torch.nn.Parameter(source.tensor(name, tuple(parameter.shape)), requires_grad=False)
                setattr(model.get_submodule(owner), key, filled)


def prompt(length: int, seed: int) -> list[int]:
    """Return random token ids from 3 to 199."""
    return random.Random(seed).choices(range(3, 200), k=length)


Logits = list[tuple[torch.Tensor, list[int], int]]
"""(logits, tokens of the sequence, position of the first of the logits)."""


def whole(model: Stepper) -> Logits:
    """A prompt in one step."""
    tokens = prompt(37, 1)
    (got,) = model.step((Sequence(tokens), 37))
    return [(got, tokens, 0)]


def chunked(model: Stepper) -> Logits:
    """A prompt in five steps."""
    tokens = prompt(37, 2)
    sequence = Sequence(tokens, known=37)
    got = [model.step((sequence, count))[0] for count in (5, 1, 13, 7, 11)]
    return [(torch.cat(got), tokens, 0)]


def batched(model: Stepper) -> Logits:
    """Three sequences of different lengths decode together, while a fourth is prefilled beside them in chunks."""
    decoding = [Sequence(prompt(length, length), known=length) for length in (21, 35, 30)]
    fourth = Sequence(prompt(25, 4), known=25)
    pieces: dict[int, list[torch.Tensor]] = {id(s): [] for s in (*decoding, fourth)}

    def run(*work: tuple[Sequence, int]) -> None:
        for (sequence, _), got in zip(work, model.step(*work), strict=True):
            pieces[id(sequence)].append(got)

    run(*[(s, len(s.tokens) - 4) for s in decoding])
    for chunk in (9, 6, 10):
        run(*[(s, 1) for s in decoding[:2]], (fourth, chunk), (decoding[2], 1))
    run(*[(s, 1) for s in decoding])
    return [(torch.cat(pieces[id(s)]), s.tokens, 0) for s in (*decoding, fourth)]


def prefix_hit(model: Stepper) -> Logits:
    """The second sequence takes over the first one's blocks and starts in the middle."""
    first = Sequence(prompt(33, 5))
    model.step((first, 33), release=False)
    results = []
    for shared, length in ((20, 33), (32, 33)):
        tokens = first.tokens[:shared] + prompt(length - shared, 6)
        second = Sequence(tokens, start=shared, known=length)
        second.tables = {window: table[: shared // BLOCK] for window, table in first.tables.items()}
        (got,) = model.step((second, length - shared))
        results.append((got, tokens, shared))
    return results
