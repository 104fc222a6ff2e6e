"""Native step programs against core's interpreter of the same graph in plain torch, for every architecture.

To 1e-4 of the logits' spread through whole prompts, chunks, and decodes beside prefills; see `conftest.Engine`.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from modulm.interfaces import program as ops
from modulm.models.index import ARCHITECTURES
from modulm_kernels_cpu import _native

TOLERANCE = 1e-4
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 100.0, "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [2.0, 2.5, 3.0, 3.5, 4.0, 5.0],
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0}
GEMMA = {
    "sliding_window": 9, "head_dim": 32, "query_pre_attn_scalar": 24, "final_logit_softcapping": 5.0,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}  # fmt: skip
GEMMA3 = {
    **GEMMA,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    },
}
CONFIGS = {
    "LlamaForCausalLM": {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True, "head_dim": 32},
    "MistralForCausalLM": {"sliding_window": 9, "head_dim": 24, "num_key_value_heads": 1},
    "Qwen2ForCausalLM": {
        "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2, "tie_word_embeddings": True,
        "rope_parameters": YARN,
    },
    "Qwen3ForCausalLM": {
        "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "attention_bias": True, "head_dim": 32,
    },
    "Phi3ForCausalLM": {
        "sliding_window": 13, "rope_parameters": LONGROPE, "original_max_position_embeddings": 16,
        "num_key_value_heads": 4,
    },
    "Gemma2ForCausalLM": {**GEMMA, "attn_logit_softcapping": 3.0, "rope_parameters": LINEAR},
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": {**GEMMA3, "tie_word_embeddings": False},
    "Olmo2ForCausalLM": {"attention_bias": True},
    "GraniteForCausalLM": {
        "embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.6, "logits_scaling": 2.0,
        "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True,
    },
    "SmolLM3ForCausalLM": {
        "no_rope_layers": [1, 0, 1, 1], "use_sliding_window": True, "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "GptOssForCausalLM": {
        "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 9, "rope_parameters": YARN, "head_dim": 24,
    },
    "MixtralForCausalLM": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 11},
    "Qwen3MoeForCausalLM": {
        "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "decoder_sparse_step": 2,
        "mlp_only_layers": [3], "norm_topk_prob": True, "use_sliding_window": True, "sliding_window": 11,
        "head_dim": 24,
    },
}  # fmt: skip


@pytest.fixture
def through(sequence):
    """Run an engine through all kinds of steps, which grow and shrink; return what they gave."""

    def run(engine):
        whole, chunked, late = sequence(37), sequence(36), sequence(25)
        decoding = [sequence(length) for length in (21, 35, 30)]
        got = [engine.step((whole, 37))]
        got += [engine.step((chunked, count)) for count in (5, 1, 13, 7, 10)]
        got.append(engine.step(*[(s, len(s.tokens) - 4) for s in decoding]))
        for count in (9, 6, 10):
            got.append(engine.step(*[(s, 1) for s in decoding[:2]], (late, count), (decoding[2], 1)))
        got.append(engine.step(*[(s, 1) for s in decoding]))
        return got

    return run


def test_every_architecture_is_here():
    assert set(CONFIGS) == set(ARCHITECTURES)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_equals_the_interpreter(architecture, engine, through):
    ours = engine(architecture, **CONFIGS[architecture])
    through(ours)
    assert ours.error() < TOLERANCE


ROPES = {
    "default": {"rope_type": "default", "rope_theta": 100.0},
    "linear": LINEAR,
    "dynamic": DYNAMIC,
    "yarn": YARN,
    "yarn, attention_factor": {**YARN, "attention_factor": 1.3},
    "llama3": LLAMA3,
    "partial": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
}


@pytest.mark.parametrize("kind", ROPES)
def test_rotary_kinds_past_the_stated_length(kind, engine, through):
    ours = engine("LlamaForCausalLM", rope_parameters=ROPES[kind], max_position_embeddings=16)
    through(ours)
    assert ours.error() < TOLERANCE
    tables = next(op for op in ours.graph.forward.ops if isinstance(op, ops.RotaryTables))
    assert 2 * len(tables.inverse) == (8 if kind == "partial" else 16)
    assert (tables.dynamic is not None) == (kind == "dynamic")


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_each_sequence_turns_by_its_own_length(kind, engine, sequence):
    """Short ones beside long ones, and one that decodes across the stated length, which nobody knew in advance."""
    if kind == "dynamic":
        ours = engine("LlamaForCausalLM", rope_parameters=DYNAMIC, max_position_embeddings=16)
    else:
        ours = engine("Phi3ForCausalLM", **CONFIGS["Phi3ForCausalLM"])
    batch = [sequence(length) for length in (11, 37, 16)]
    ours.step(*[(s, len(s.tokens)) for s in batch])
    growing = sequence(24, known=0)
    for count in (12, *[1] * 12):
        ours.step((growing, count))
    assert ours.error() < TOLERANCE


IN_TILES = _native.isa() == "amx"
"""Whether weights and values of attention are rounded to bfloat16 where many rows are computed."""


@pytest.mark.parametrize("cache_dtype", ["int8_per_token_head", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Gemma2ForCausalLM", "MistralForCausalLM"])
@pytest.mark.parametrize("exact", [True, False])
def test_caches_of_8_bits(exact, architecture, cache_dtype, engine, through):
    """With windows, caps and rotations; where sums differ in their last bit, a key may be rounded the other way."""
    ours = engine(architecture, cache_dtype=cache_dtype, exact=exact, **CONFIGS[architecture])
    rounded = through(ours)
    errors = [np.abs(got - want).mean() / want.std() for got, want in ours.results]
    is_float = cache_dtype != "int8_per_token_head"
    coarse = not exact and is_float and IN_TILES
    assert np.median(errors) < (TOLERANCE if exact and is_float else 2e-2 if coarse else 5e-3)
    assert max(errors) < (0.1 if coarse else 0.05)
    plain = through(engine(architecture, **CONFIGS[architecture], compared=False))
    costs = [np.abs(a[1] - b[1]).mean() / b[1].std() for a, b in zip(rounded, plain, strict=True)]
    assert np.median(costs) > 2 * np.median(errors), "the cache is narrow in both, and that is seen"


@pytest.mark.parametrize("cache_dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Gemma2ForCausalLM"])
@pytest.mark.parametrize("exact", [True, False])
def test_caches_of_16_bits(exact, architecture, cache_dtype, engine, through):
    ours = engine(architecture, cache_dtype=cache_dtype, exact=exact, **CONFIGS[architecture])
    rounded = through(ours)
    coarse = not exact and IN_TILES
    # Where sums differ in their last bit, a key may be rounded the other way.
    assert ours.error() < (5e-2 if coarse else 2e-2)
    errors = [np.abs(got - want).mean() / want.std() for got, want in ours.results]
    assert np.median(errors) < TOLERANCE if exact else TOLERANCE < max(errors) < (2e-2 if coarse else 5e-3)
    plain = through(engine(architecture, **CONFIGS[architecture]))
    assert any((a[1] != b[1]).any() for a, b in zip(rounded, plain, strict=True))


@pytest.mark.parametrize("block", [1, 3, 16, 64])
def test_block_sizes(block, engine, through):
    ours = engine("MistralForCausalLM", block=block, num_blocks=800, **CONFIGS["MistralForCausalLM"])
    through(ours)
    assert ours.error() < TOLERANCE


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Olmo2ForCausalLM", "MixtralForCausalLM"])
def test_steps_of_more_rows_than_are_computed_at_once(architecture, engine, sequence):
    ours = engine(architecture, **{**CONFIGS[architecture], "sliding_window": 50})
    long, short = sequence(700), sequence(20)
    ours.step((long, 600))
    ours.step((short, 19), (long, 1))
    ours.step((long, 99), (short, 1))
    assert ours.error() < TOLERANCE


# The same bits, whatever is beside a token and whoever computes it.


@pytest.fixture(scope="module")
def of_one_thread(engine, sequence):
    before, found = _native.num_threads(), {}
    _native.set_num_threads(1)
    for architecture in CONFIGS:
        ours = engine(architecture, compared=False, **CONFIGS[architecture])
        found[architecture] = _long_and_short(ours, sequence)
    _native.set_num_threads(before)
    return found


def _long_and_short(ours, sequence):
    batch = [sequence(length) for length in (360, 31, 3)]  # for one thread or two, blocks of rows
    got = [ours.step(*[(s, len(s.tokens) - 2) for s in batch])]
    return got + [ours.step(*[(s, 1) for s in batch]) for _ in range(2)]


@pytest.mark.parametrize("architecture", CONFIGS)
def test_the_number_of_threads_changes_no_bit(architecture, engine, sequence, num_threads, of_one_thread):
    ours = engine(architecture, compared=False, **CONFIGS[architecture])
    for found, want in zip(_long_and_short(ours, sequence), of_one_thread[architecture], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("architecture", CONFIGS)
def test_neighbours_change_no_bit(architecture, engine, sequence):
    ours = engine(architecture, compared=False, **CONFIGS[architecture])
    lengths = (40, 3, 17, 29, 11)
    together = [sequence(length) for length in lengths]
    found = [ours.step(*[(s, len(s.tokens) - 2) for s in together])]
    found += [ours.step(*[(s, 1) for s in together]) for _ in range(2)]
    starts = np.cumsum([0, *(length - 2 for length in lengths)])
    for number, length in enumerate(lengths):
        alone = sequence(length)
        for at, count in enumerate((length - 2, 1, 1)):
            rows = slice(starts[number], starts[number + 1]) if at == 0 else slice(number, number + 1)
            for one, all_of_them in zip(ours.step((alone, count)), found[at], strict=True):
                assert np.array_equal(one, all_of_them[rows]), (length, at)


def test_logits_of_some_rows_in_any_order(engine, sequence):
    ours = engine("LlamaForCausalLM", **CONFIGS["LlamaForCausalLM"])
    _, every = ours.step((sequence(30), 30))
    for index in ([29], [3, 3, 3], [29, 0, 7], list(range(29, -1, -1)) * 3):
        assert np.array_equal(ours.program.logits(np.array(index)), every[index])


def test_memory_grows_with_the_largest_step_only(engine, sequence):
    ours, sizes = engine("LlamaForCausalLM"), []
    for length in (10, 40, 5, 39, 80):
        ours.step((sequence(length), length))
        sizes.append(ours.program.size_bytes)
    assert sizes[0] < sizes[1] == sizes[2] == sizes[3] < sizes[4]


# A wrong program is noticed: every attribute of every operation, changed.


def changed(section, kind, attributes):
    """Return a graph whose first operation of a kind has other attributes."""

    def change(graph):
        part = getattr(graph, section)
        at = next(i for i, op in enumerate(part.ops) if isinstance(op, kind))
        made = msgspec.structs.replace(part.ops[at], **attributes(part.ops[at]))
        part = msgspec.structs.replace(part, ops=(*part.ops[:at], made, *part.ops[at + 1 :]))
        return msgspec.structs.replace(graph, **{section: part})

    return change


MUTANTS = [
    ("LlamaForCausalLM", "forward", ops.Linear, lambda op: {"bias": None}),
    ("LlamaForCausalLM", "forward", ops.RMSNorm, lambda op: {"eps": 0.05}),
    ("LlamaForCausalLM", "forward", ops.RMSNorm, lambda op: {"unit_offset": True}),
    ("LlamaForCausalLM", "forward", ops.RotaryTables, lambda op: {"scaling": 1.1}),
    ("LlamaForCausalLM", "forward", ops.RotaryTables, lambda op: {"inverse": op.inverse[::-1]}),
    ("LlamaForCausalLM", "forward", ops.GatedActivation, lambda op: {"function": "relu"}),
    ("LlamaForCausalLM", "forward", ops.Attention, lambda op: {"layer": "model.layers.2.self_attn"}),
    ("Phi3ForCausalLM", "forward", ops.RotaryTables, lambda op: {"long_from": 40}),
    ("GraniteForCausalLM", "forward", ops.Scale, lambda op: {"factor": 2.9}),
    ("GraniteForCausalLM", "logits", ops.LMHead, lambda op: {"divisor": 2.1}),
    ("Gemma2ForCausalLM", "logits", ops.LMHead, lambda op: {"soft_cap": 5.5}),
    ("MixtralForCausalLM", "forward", ops.SparseMoE, lambda op: {"top_k": 3}),
    ("MixtralForCausalLM", "forward", ops.SparseMoE, lambda op: {"normalised": not op.normalised}),
    ("MixtralForCausalLM", "forward", ops.SparseMoE, lambda op: {"down": op.down[::-1]}),
]


@pytest.mark.parametrize(("architecture", "section", "kind", "attributes"), MUTANTS)
def test_the_comparison_notices_a_wrong_operation(architecture, section, kind, attributes, engine, through):
    ours = engine(architecture, change=changed(section, kind, attributes), **CONFIGS[architecture])
    through(ours)
    assert ours.error() > 20 * TOLERANCE


@pytest.mark.parametrize("wrong", [{"sliding_window": 10}, {"soft_cap": 2.5}, {"scale": 0.2}], ids=str)
def test_the_comparison_notices_a_wrong_layer(wrong, engine, through):
    def change(graph):
        name = "model.layers.2.self_attn"
        return msgspec.structs.replace(graph, layers=graph.layers | {name: replace(graph.layers[name], **wrong)})

    ours = engine("Gemma2ForCausalLM", change=change, **CONFIGS["Gemma2ForCausalLM"])
    through(ours)
    assert ours.error() > 20 * TOLERANCE
