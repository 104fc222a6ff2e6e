"""Logits of every architecture equal transformers' (eager, float32) on tiny random checkpoints, to 1e-4.

Checkpoints are written by `save_pretrained` and read back by name. Caches start as NaN, freed blocks become NaN again
and tables are shuffled, so a read of a wrong slot cannot pass. Beside every step of the model its recorded graph,
written out and read back, is interpreted on caches of its own and must give the same bits.
"""

import copy
import importlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from modulm.config import ModelConfig
from modulm.errors import CheckpointError
from modulm.interfaces.attention import BatchLayout
from modulm.interfaces.model import ForwardBatch
from modulm.interfaces.program import Graph
from modulm.interfaces.quantization import Dense
from modulm.models.index import ARCHITECTURES
from modulm.nn.attention import Attention
from modulm.nn.rotary import SEQUENCE_LENGTHS
from modulm.reference.attention_torch import TorchAttention
from modulm.reference.graph_torch import GraphInterpreter
from modulm.reference.linear_torch import TorchKernels
from modulm.worker.trace import trace

TOLERANCE = 1e-4
BLOCK = 4
BASE = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [2.0, 2.5, 3.0, 3.5, 4.0, 5.0],
}
ALTERNATING = ["sliding_attention", "full_attention"] * 2

CONFIGS = {
    "LlamaForCausalLM": {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True, "head_dim": 32},
    "MistralForCausalLM": {"sliding_window": 9, "head_dim": 24},
    "Qwen2ForCausalLM": {
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 2,
        "tie_word_embeddings": True,
        "rope_parameters": YARN,
    },
    "Qwen3ForCausalLM": {
        "head_dim": 32,
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
        "attention_bias": True,
    },
    "Phi3ForCausalLM": {
        "sliding_window": 13,
        "rope_parameters": LONGROPE,
        "original_max_position_embeddings": 16,
        "num_key_value_heads": 4,
    },
    "Gemma2ForCausalLM": {
        "sliding_window": 9,
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 4.0,
        "rope_parameters": LINEAR,
        "layer_types": ALTERNATING,
    },
    "Gemma3ForCausalLM": {
        "sliding_window": 9,
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "final_logit_softcapping": 5.0,
        "layer_types": ALTERNATING,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
        },
    },
    "Olmo2ForCausalLM": {"attention_bias": True, "num_key_value_heads": 2},
    "GraniteForCausalLM": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.6,
        "logits_scaling": 2.0,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "SmolLM3ForCausalLM": {
        "no_rope_layers": [1, 0, 1, 1],
        "use_sliding_window": True,
        "sliding_window": 9,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "MixtralForCausalLM": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 11},
    "Qwen3MoeForCausalLM": {
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        "norm_topk_prob": True,
        "use_sliding_window": True,
        "sliding_window": 11,
        "head_dim": 24,
    },
}


def config_class(architecture):
    name = architecture.removesuffix("ForCausalLM")
    return transformers.Gemma3TextConfig if name == "Gemma3" else getattr(transformers, f"{name}Config")


def randomised(model, seed=0):
    """Give every parameter a scale at which it matters."""
    generator = torch.Generator().manual_seed(seed)
    centred_at_zero = "Gemma" in type(model).__name__
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(0.3 * noise if centred_at_zero else 1 + 0.3 * noise)
            elif parameter.ndim == 1 or "embed" in name:
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
    return model.eval()


def tiny(architecture, folder, **overrides):
    """Return transformers' model and ours, read from what the former saved."""
    torch.manual_seed(0)
    options = {**BASE, **CONFIGS.get(architecture, {}), **overrides}
    config = config_class(architecture)(**options, attn_implementation="eager")
    theirs = randomised(getattr(transformers, architecture)(config))
    theirs.save_pretrained(folder)
    hf = json.loads((folder / "config.json").read_text())
    return theirs, Engine(hf, load_file(folder / "model.safetensors"))


class Tensors:
    """`WeightSource` over a dict."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.read = set()

    def has(self, name):
        return name in self.tensors

    def tensor(self, name, shape):
        if name not in self.tensors:
            raise CheckpointError(f"Tensor {name!r} is missing.")
        assert tuple(self.tensors[name].shape) == tuple(shape), name
        self.read.add(name)
        return self.tensors[name]

    def packed(self, modules, out_features, in_features, *, op="linear"):
        parts = [
            self.tensor(f"{module}.weight", (size, in_features))
            for module, size in zip(modules, out_features, strict=True)
        ]
        data = torch.cat(parts)
        weight = Dense(out_features=len(data), in_features=in_features, data=data.numpy())
        return TorchKernels().pack(weight, "cpu", "float32")

    def packed_slice(self, name, shape, index, *, op="linear"):
        data = self.tensor(name, shape)[index]
        weight = Dense(out_features=shape[1], in_features=shape[2], data=data.numpy())
        return TorchKernels().pack(weight, "cpu", "float32")


@dataclass
class Sequence:
    tokens: list
    known: int = 0
    """Tokens whose length counts for length-dependent rotary kinds; 0 stands for all of `tokens`."""
    start: int = 0
    tables: dict = field(default_factory=dict)


class Engine:
    """What the worker does, at its smallest: blocks, layouts, steps."""

    def __init__(self, hf, tensors, *, num_blocks=160):
        config = ModelConfig(name="tiny", hf=hf, architectures=hf["architectures"], max_model_len=64)
        module, _, name = ARCHITECTURES[hf["architectures"][0]].partition(":")
        with torch.device("meta"):
            self.model = getattr(importlib.import_module(module), name)(config)
        self.source = Tensors(tensors)
        for name, child in self.model.named_modules():
            if hasattr(child, "load"):
                child.load(name, self.source)
        self.layers = [module for module in self.model.modules() if isinstance(module, Attention)]
        self.backend = TorchAttention()
        self.caches = {}
        for layer in self.layers:
            layer.bind(self.backend)
            shape = TorchAttention.kv_cache_shape(num_blocks, BLOCK, layer.spec.num_kv_heads, layer.spec.head_size)
            self.caches[layer.name] = torch.full(shape, torch.nan)
        recording = trace(self.model)
        self.graph = Graph.from_dict(json.loads(json.dumps(recording.graph.to_dict())))
        backends = dict.fromkeys(self.caches, self.backend)
        self.interpreter = GraphInterpreter(self.graph, recording.weights, recording.tensors, backends)
        self.recorded_caches = {name: cache.clone() for name, cache in self.caches.items()}
        self.windows = {layer.spec.sliding_window for layer in self.layers}
        self.free = list(range(1, num_blocks))
        random.Random(1).shuffle(self.free)

    def step(self, *work, release=True):
        """Run (sequence, number of tokens) pairs; return logits of every token, per sequence."""
        for sequence, count in work:
            for window in self.windows:
                table = sequence.tables.setdefault(window, [])
                while len(table) * BLOCK < sequence.start + count:
                    table.append(self.free.pop())
        metadata = {w: self.backend.plan(self._layout(work, w), torch.device("cpu")) for w in self.windows}
        positions = [position for s, count in work for position in range(s.start, s.start + count)]
        lengths = [max(s.known, s.start + count) for s, count in work for _ in range(count)]
        batch = ForwardBatch(
            positions=torch.tensor(positions),
            kv_caches=self.caches,
            metadata={layer.name: metadata[layer.spec.sliding_window] for layer in self.layers},
            max_seq_len=max(s.start + count for s, count in work),
            extra={SEQUENCE_LENGTHS: torch.tensor(lengths)},
        )
        tokens = torch.tensor([t for s, count in work for t in s.tokens[s.start : s.start + count]])
        with torch.inference_mode():
            hidden = self.model(tokens, batch)
            logits = self.model.compute_logits(hidden)
        assert logits.dtype == torch.float32
        self._interpret(tokens, batch, hidden, logits)
        for sequence, count in work:
            sequence.start += count
            if release:
                self._release(sequence)
        return logits.split([count for _, count in work])

    def _interpret(self, tokens, batch, hidden, logits):
        inputs = {"token_ids": tokens, "positions": batch.positions, **batch.extra}
        with torch.inference_mode():
            found = self.interpreter.forward(inputs, self.recorded_caches, batch.metadata)
            assert torch.equal(found, hidden)
            assert torch.equal(self.interpreter.logits(found), logits)

    def _layout(self, work, window):
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

    def _release(self, sequence):
        """Blocks wholly outside a window go back to the pool, poisoned; the null block takes their place."""
        for window, table in sequence.tables.items():
            for index, block in enumerate(table):
                if window is not None and block and (index + 1) * BLOCK <= sequence.start + 1 - window:
                    table[index] = 0
                    for layer in self.layers:
                        if layer.spec.sliding_window == window:
                            self.caches[layer.name][block] = torch.nan
                            self.recorded_caches[layer.name][block] = torch.nan


def prompt(length, seed):
    return random.Random(seed).choices(range(3, 200), k=length)


def expected(theirs, tokens):
    theirs = copy.deepcopy(theirs)  # the rotary embedding of some kinds remembers the longest sequence it has seen
    with torch.inference_mode():
        return theirs(torch.tensor([tokens]), use_cache=False).logits[0]


def whole(theirs, ours):
    tokens = prompt(37, 1)
    (got,) = ours.step((Sequence(tokens), 37))
    return [(got, expected(theirs, tokens))]


def chunked(theirs, ours):
    tokens = prompt(37, 2)
    sequence = Sequence(tokens, known=37)
    got = [ours.step((sequence, count))[0] for count in (5, 1, 13, 7, 11)]
    return [(torch.cat(got), expected(theirs, tokens))]


def batched(theirs, ours):
    """Three sequences of different lengths decode together, while a fourth is prefilled beside them in chunks."""
    decoding = [Sequence(prompt(length, length), known=length) for length in (21, 35, 30)]
    fourth = Sequence(prompt(25, 4), known=25)
    pieces = {id(s): [] for s in (*decoding, fourth)}

    def run(*work):
        for (sequence, _), got in zip(work, ours.step(*work), strict=True):
            pieces[id(sequence)].append(got)

    run(*[(s, len(s.tokens) - 4) for s in decoding])
    for chunk in (9, 6, 10):
        run(*[(s, 1) for s in decoding[:2]], (fourth, chunk), (decoding[2], 1))
    run(*[(s, 1) for s in decoding])
    return [(torch.cat(pieces[id(s)]), expected(theirs, s.tokens)) for s in (*decoding, fourth)]


def prefix_hit(theirs, ours):
    """The second sequence takes over the first one's blocks and starts in the middle."""
    first = Sequence(prompt(33, 5))
    ours.step((first, 33), release=False)
    results = []
    for shared, length in ((20, 33), (32, 33)):
        tokens = first.tokens[:shared] + prompt(length - shared, 6)
        second = Sequence(tokens, start=shared, known=length)
        second.tables = {window: table[: shared // BLOCK] for window, table in first.tables.items()}
        (got,) = ours.step((second, length - shared))
        results.append((got, expected(theirs, tokens)[shared:]))
    return results


MODES = {"whole": whole, "chunked": chunked, "batched": batched, "prefix hit": prefix_hit}


def worst(pairs):
    return max((got - want).abs().max().item() for got, want in pairs)


@pytest.fixture(scope="module")
def table(request):
    """Collects the greatest differences; printed at the end of the module."""
    torch.set_num_threads(1)
    rows, recorded = {}, {}
    yield rows, recorded
    width = max(map(len, rows), default=30)
    lines = [f"{'greatest difference of logits':{width}} " + "".join(f"{mode:>12}" for mode in MODES)]
    lines += [f"{name:{width}} " + "".join(f"{row[mode]:12.1e}" for mode in row) for name, row in rows.items()]
    lines += [f"operations of {name}: {counts}" for name, counts in recorded.items()]
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join(lines))


def check(name, theirs, ours, table, modes=MODES):
    rows, recorded = table
    row = rows.setdefault(name, {})
    counts = Counter(type(op).__name__ for op in (*ours.graph.forward.ops, *ours.graph.logits.ops))
    if name in CONFIGS:
        recorded[name] = f"{counts.total()} = " + ", ".join(f"{count} {op}" for op, count in sorted(counts.items()))
    for mode, run in modes.items():
        pairs = run(theirs, ours)
        spread = min(want.std().item() for _, want in pairs)
        assert spread > 0.3, f"{name}: these logits are too flat to prove anything"
        row[mode] = worst(pairs)
    assert max(row.values()) < TOLERANCE, f"{name}: {row}"


@pytest.mark.parametrize("architecture", CONFIGS)
def test_logits_equal_transformers(architecture, tmp_path, table):
    theirs, ours = tiny(architecture, tmp_path)
    assert ours.source.read == set(ours.source.tensors), "every tensor of the checkpoint is read"
    check(architecture, theirs, ours, table)


ROPES = {
    "default": {"rope_type": "default", "rope_theta": 100.0},
    "linear": LINEAR,
    "dynamic": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0},
    "yarn": YARN,
    "yarn, all options": {
        **YARN,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
        "truncate": False,
    },
    "yarn, attention_factor": {**YARN, "attention_factor": 1.3},
    "llama3": LLAMA3,
}


def short_beside_long(theirs, ours):
    """A neighbour past the original length must not change a short sequence, nor the other way about."""
    sequences = [Sequence(prompt(length, length), known=length) for length in (11, 37, 16)]
    got = ours.step(*[(s, len(s.tokens)) for s in sequences])
    return [(logits, expected(theirs, s.tokens)) for logits, s in zip(got, sequences, strict=True)]


ROPE_MODES = {"whole": whole, "chunked": chunked, "batched": short_beside_long, "prefix hit": prefix_hit}


@pytest.mark.parametrize("kind", ROPES)
def test_rotary_kinds_equal_transformers_past_the_original_length(kind, tmp_path, table):
    options = {"rope_parameters": dict(ROPES[kind]), "max_position_embeddings": 16}
    modes = dict(ROPE_MODES)
    if kind == "dynamic":
        del modes["prefix hit"]  # the prefix keeps the rotation of the sequence that wrote it, which had another length
    theirs, ours = tiny("LlamaForCausalLM", tmp_path, head_dim=16, **options)
    check(f"rope: {kind}", theirs, ours, table, modes)


@pytest.mark.parametrize("extra", [{}, {"factor": 3.0}, {"attention_factor": 1.2}], ids=str)
def test_longrope_equals_transformers_past_the_original_length(extra, tmp_path, table):
    options = {"rope_parameters": {**LONGROPE, **extra}, "original_max_position_embeddings": 16}
    theirs, ours = tiny("Phi3ForCausalLM", tmp_path, sliding_window=None, **options)
    check(f"rope: longrope {extra or ''}", theirs, ours, table, ROPE_MODES)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_decoding_across_the_original_length_equals_transformers_with_a_cache(kind, tmp_path):
    if kind == "dynamic":
        options = {"rope_parameters": dict(ROPES[kind]), "max_position_embeddings": 16}
        theirs, ours = tiny("LlamaForCausalLM", tmp_path, **options)
    else:
        theirs, ours = tiny("Phi3ForCausalLM", tmp_path, sliding_window=None)
    tokens, cache, sequence = prompt(24, 7), transformers.DynamicCache(), Sequence(prompt(24, 7))
    for start, count in [(0, 12), *((position, 1) for position in range(12, 24))]:
        with torch.inference_mode():
            want = theirs(torch.tensor([tokens[start : start + count]]), cache=cache).logits[0]
        (got,) = ours.step((sequence, count))
        assert (got - want).abs().max() < TOLERANCE, f"position {start}"


NULL = {"rope_type": "default", "rope_theta": 10.0}


@pytest.mark.parametrize(
    ("architecture", "change"),
    [
        ("LlamaForCausalLM", {"rope_parameters": NULL}),
        ("MistralForCausalLM", {"sliding_window": 10}),
        ("Qwen2ForCausalLM", {"layer_types": ["full_attention"] * 4}),
        ("Phi3ForCausalLM", {"original_max_position_embeddings": 64}),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": None}),
        ("Gemma2ForCausalLM", {"query_pre_attn_scalar": 32}),
        ("Gemma3ForCausalLM", {"rope_parameters": {"sliding_attention": NULL, "full_attention": NULL}}),
        ("GraniteForCausalLM", {"attention_multiplier": 0.25}),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 1, 1, 1]}),
        ("SmolLM3ForCausalLM", {"use_sliding_window": False}),
        ("MixtralForCausalLM", {"num_experts_per_tok": 3}),
        ("Qwen3MoeForCausalLM", {"norm_topk_prob": False}),
    ],
    ids=str,
)
def test_the_comparison_notices_a_wrong_setting(architecture, change, tmp_path):
    theirs, ours = tiny(architecture, tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    wrong = Engine({**hf, **change}, ours.source.tensors)
    assert worst(whole(theirs, wrong)) > 100 * TOLERANCE


def test_gemma3_reads_the_language_model_of_a_checkpoint_with_vision(tmp_path, table):
    text = {**BASE, **CONFIGS["Gemma3ForCausalLM"], "final_logit_softcapping": None}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, attn_implementation="eager")
    theirs = randomised(transformers.Gemma3ForConditionalGeneration(config))
    theirs.save_pretrained(tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    hf = {**hf, **hf["text_config"], "architectures": hf["architectures"]}
    ours = Engine(hf, load_file(tmp_path / "model.safetensors"))
    check("Gemma3ForConditionalGeneration", theirs, ours, table)


@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
def test_stacked_experts_are_read_too(architecture, tmp_path):
    theirs, ours = tiny(architecture, tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    stacked = Engine(hf, dict(theirs.state_dict()))
    assert any(name.endswith("experts.gate_up_proj") for name in stacked.source.read)
    assert worst(whole(theirs, stacked)) < TOLERANCE
