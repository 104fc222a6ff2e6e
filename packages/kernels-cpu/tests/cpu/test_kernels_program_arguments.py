"""What native sections and programs refuse: by exception, before anything is read or written out of bounds."""

import gc
import threading
from typing import NamedTuple

import numpy as np
import pytest
import torch

from modulm.interfaces.quantization import Dense
from modulm_kernels_cpu import _native, packed_dense

HIDDEN, HEADS, KV_HEADS, SIZE, BLOCK, BLOCKS, VOCAB = 32, 4, 2, 8, 4, 6, 11
MOST = 2**63 - 1
REFUSALS = (ValueError, TypeError, IndexError)
X, Y, WIDE = (0, 0, HIDDEN), (1, 0, HIDDEN), (2, 0, 64)
SIZES = [HIDDEN, HIDDEN, 64, SIZE, SIZE]


class Matrix(NamedTuple):
    """Stands for a packed weight in tables of arguments: native objects must not outlive the tests."""

    out_features: int
    in_features: int = HIDDEN


def native(out_features, in_features):
    data = torch.randn(out_features, in_features, generator=torch.Generator().manual_seed(out_features))
    return packed_dense.pack(Dense(out_features=out_features, in_features=in_features, data=data.numpy())).native[0]


def matrix(out_features, in_features=HIDDEN):
    return [(Matrix(out_features, in_features), False)]


def plain(*sizes):
    """A matrix without biases."""
    return matrix(*sizes), None


def real(value):
    """Put weights where `Matrix` stands for them."""
    if isinstance(value, Matrix):
        return native(*value)
    if isinstance(value, dict):
        return {name: real(one) for name, one in value.items()}
    return type(value)(map(real, value)) if type(value) in (list, tuple) else value


def cache(blocks=BLOCKS, dtype=np.float32, block=BLOCK):
    return np.zeros((blocks, 2, KV_HEADS, block, SIZE), dtype)


def bytes_cache(size=SIZE):
    return np.zeros((BLOCKS, 2, KV_HEADS, BLOCK, size + 4), np.int8)


ADDED = {
    "embedding": {"weight": Matrix(VOCAB), "out": X},
    "linear": {"parts": matrix(32), "bias": np.zeros(32, np.float32), "x": X, "out": Y},
    "gated_linear": {"parts": matrix(64), "bias": np.zeros(64, np.float32), "function": "silu", "x": X, "out": Y},
    "gated_mlp": {
        "parts": matrix(64), "bias": np.zeros(64, np.float32), "function": "silu", "down": matrix(32),
        "down_bias": np.zeros(32, np.float32), "x": X, "out": Y,
    },
    "gated_activation": {"function": "gelu", "size": 32, "x": WIDE, "out": Y},
    "rms_norm": {
        "weight": np.ones(16, np.float32), "count": 2, "eps": 1e-5, "unit_offset": False, "x": X, "out": Y,
    },
    "add": {"size": 32, "a": X, "b": X, "out": Y},
    "scale": {"size": 32, "factor": 2.0, "x": X, "out": Y},
    "rotary_tables": {
        "inverse": [1.0, 0.5, 0.25, 0.1], "scaling": 1.0, "long_inverse": [1.0] * 4, "long_from": 3,
        "dynamic": (100.0, 2.0, 16), "cos": (3, 0, SIZE), "sin": (4, 0, SIZE),
    },
    "attention": {
        "cache": cache(), "cache_type": "float32", "num_heads": HEADS, "scale": 0.3, "window": 0, "soft_cap": 0.0,
        "sinks": None, "key_scales": (), "value_scales": (),
        "exact": False, "group": 0, "query": (2, 0, 64), "key": (2, 32, 64), "value": (2, 48, 64), "out": Y,
        "rope_width": 8, "cos": (3, 0, SIZE), "sin": (4, 0, SIZE),
    },
    "sparse_moe": {
        "router": plain(3), "gate_up": [plain(24)] * 3, "down": [plain(32, 12)] * 3, "top_k": 2,
        "function": "relu", "normalised": True, "x": X, "out": Y,
    },
    "lm_head": {"parts": matrix(VOCAB), "divisor": 1.0, "soft_cap": 0.0, "x": X},
}  # fmt: skip
PLACES = ("x", "out", "a", "b", "cos", "sin", "query", "key", "value")
FLOAT64, SPREAD = np.ones(32), np.ones(64, np.float32)[::2]
NOT_CONTIGUOUS = np.zeros((BLOCKS, 2, KV_HEADS, SIZE, BLOCK), np.float32).swapaxes(3, 4)


def misaligned(shape, dtype=np.float32):
    count, size = int(np.prod(shape)), np.dtype(dtype).itemsize
    return np.frombuffer(bytearray(count * size + 1), dtype, count, offset=1).reshape(shape)


READ_ONLY = cache()
READ_ONLY.setflags(write=False)

WRONG = {
    "embedding": [{"weight": None}, {"weight": 3}, {"weight": matrix(4)}, {"weight": Matrix(VOCAB, 33)}],
    "linear": [
        {"parts": []}, {"parts": None}, {"parts": [None]}, {"parts": [(None, False)]}, {"parts": [(object(), False)]},
        {"parts": [(Matrix(32), None)]}, {"parts": [(Matrix(32),)]}, {"parts": matrix(33)},
        {"parts": matrix(32, 33)}, {"parts": matrix(16) + matrix(16, 31)}, {"bias": np.zeros(31, np.float32)},
        {"bias": FLOAT64}, {"bias": SPREAD}, {"bias": misaligned(32)}, {"bias": [0.0] * 32},
        {"bias": np.zeros((1, 32), np.float32)},
    ],
    "gated_linear": [
        {"parts": matrix(63), "bias": None}, {"parts": matrix(66), "bias": None}, {"function": "tanh"},
        {"function": None}, {"parts": [(None, True)]}, {"bias": np.zeros(32, np.float32)},
    ],
    "gated_mlp": [
        {"parts": matrix(66), "bias": None}, {"parts": matrix(62), "bias": None}, {"function": "tanh"},
        {"down": []}, {"down": matrix(32, 31)}, {"down": [(None, True)]}, {"bias": np.zeros(32, np.float32)},
        {"down_bias": np.zeros(31, np.float32)}, {"down": matrix(65), "down_bias": None},
    ],
    "gated_activation": [
        {"function": "swish"}, {"size": 0}, {"size": -1}, {"size": 33}, {"size": MOST}, {"size": 2**62}, {"size": None},
    ],
    "rms_norm": [
        {"weight": np.ones(0, np.float32)}, {"weight": FLOAT64}, {"weight": SPREAD}, {"weight": None},
        {"weight": misaligned(16)}, {"weight": np.ones((4, 4), np.float32)},
        {"count": 0}, {"count": -2}, {"count": 3}, {"count": 2**60},
        {"count": MOST}, {"eps": None}, {"unit_offset": None},
    ],
    "add": [{"size": 0}, {"size": -32}, {"size": 33}, {"size": MOST}, {"size": -MOST - 1}, {"size": 2**64}],
    "scale": [{"size": 0}, {"size": -1}, {"size": 33}, {"size": MOST}, {"factor": None}, {"factor": "2"}],
    "rotary_tables": [
        {"inverse": []}, {"inverse": [1.0] * 5}, {"inverse": None}, {"inverse": ["1"] * 4}, {"long_inverse": [1.0]},
        {"long_inverse": None}, {"long_from": None}, {"dynamic": (1.0, 2.0)}, {"dynamic": (1.0, 2.0, 0)},
        {"dynamic": (1.0, 2.0, -5)}, {"inverse": [1.0], "long_inverse": []},
    ],
    "attention": [
        {"cache": cache()[0]}, {"cache": cache(0)}, {"cache": cache(block=0)}, {"cache": cache()[:, :1]},
        {"cache": NOT_CONTIGUOUS}, {"cache": READ_ONLY}, {"cache": cache(dtype=np.float64)}, {"cache": None},
        {"cache": misaligned(cache().shape)},
        {"cache": cache(dtype=np.int16)}, {"cache_type": "bfloat16"}, {"cache_type": "int8"}, {"cache_type": None},
        {"cache_type": "int8_per_token_head"}, {"cache": bytes_cache()}, {"cache_type": "int8_per_token_head",
         "cache": cache(dtype=np.int8)}, {"cache_type": "int8_per_token_head", "cache": bytes_cache(SIZE + 1)},
        {"cache_type": "int8_per_token_head", "cache": misaligned(bytes_cache().shape, np.int8)},
        {"cache": np.zeros((BLOCKS, 2, 0, BLOCK, SIZE), np.float32)},
        {"cache": np.zeros((BLOCKS, 2, KV_HEADS, BLOCK, 0), np.float32)},
        {"cache": np.zeros((BLOCKS, 2, KV_HEADS, BLOCK, 520), np.float32)},
        {"cache": np.zeros((BLOCKS, 2, 3, BLOCK, SIZE), np.float32)},
        {"num_heads": 0}, {"num_heads": -4}, {"num_heads": 3}, {"num_heads": 6}, {"num_heads": 2**61 + 4},
        {"num_heads": MOST - 1}, {"scale": np.inf}, {"scale": None}, {"window": -1}, {"soft_cap": -1.0},
        {"key_scales": (1.0,) * 2}, {"value_scales": (1.0,) * 2}, {"sinks": np.ones(3, np.float32)},
        {"soft_cap": np.nan}, {"group": -1}, {"group": 1 << 20}, {"group": MOST}, {"out": (2, 0, 64)},
        {"rope_width": 7}, {"rope_width": 10}, {"rope_width": -2}, {"rope_width": MOST},
        {"rope_width": 4}, {"cos": (2, 0, 64)}, {"sin": (2, 0, 64)},
    ],
    "sparse_moe": [
        {"router": ([], None)}, {"router": ([(None, False)], None)}, {"router": plain(4)}, {"router": plain(3, 31)},
        {"gate_up": []},
        {"down": [plain(32, 12)] * 2}, {"gate_up": [plain(24), plain(24), plain(26)]},
        {"gate_up": [plain(24), plain(24), plain(24, 31)]}, {"down": [plain(32, 12)] * 2 + [plain(31, 12)]},
        {"down": [plain(32, 12)] * 2 + [plain(32, 13)]}, {"gate_up": [[], [], []]}, {"top_k": 0}, {"top_k": 4},
        {"top_k": -1}, {"function": "none"}, {"gate_up": None},
    ],
    "lm_head": [
        {"parts": []}, {"parts": [(None, False)]}, {"parts": matrix(VOCAB, 33)},
        {"divisor": 0.0}, {"divisor": np.nan}, {"soft_cap": -1.0}, {"soft_cap": np.inf}, {"soft_cap": None},
    ],
}  # fmt: skip


CASES = [
    pytest.param(name, wrong, id=f"{name} {number} {','.join(wrong)}")
    for name, wrongs in WRONG.items()
    for number, wrong in enumerate(wrongs)
]


def add(section, name, **changes):
    """Add an operation with good arguments but for `changes`."""
    getattr(section, name)(**real({**ADDED[name], **changes}))


@pytest.mark.parametrize("name", ADDED)
def test_the_arguments_are_fine_as_they_are(name):
    add(_native.Section(SIZES), name)


@pytest.mark.parametrize(("name", "wrong"), CASES)
def test_refuses(name, wrong):
    section = _native.Section(SIZES)
    with pytest.raises(REFUSALS) as caught:
        add(section, name, **wrong)
    assert str(caught.value)


WRONG_PLACES = [
    (-1, 0, 32), (5, 0, 32), (MOST, 0, 32), (0, -1, 32), (0, 26, 32), (0, MOST, 32), (0, 0, -32), (0, 0, 0), (0, 0, 3),
    (0, 0, 65), (0, 0, MOST), (2, 0, 2**62), (2, 60, 64), (2, 0), (2, 0, 64, 0), (2.5, 0, 64), None, "abc",
    (2**64, 0, 64),
]  # fmt: skip


@pytest.mark.parametrize("place", WRONG_PLACES, ids=str)
@pytest.mark.parametrize("name", ADDED)
def test_refuses_places_outside_of_buffers(name, place):
    for which in set(ADDED[name]) & set(PLACES):
        with pytest.raises(REFUSALS):
            add(_native.Section(SIZES), name, **{which: place})


@pytest.mark.parametrize("sizes", [[0], [-1], [2**32], [MOST], [4, -4], [None], None, 3, [1.5], [2**64]], ids=str)
def test_refuses_sizes_of_buffers(sizes):
    with pytest.raises(REFUSALS):
        _native.Section(sizes)


def test_refuses_stretches_that_are_none_and_local_buffers_outside():
    with pytest.raises(REFUSALS, match="as many of `local`"):
        _native.Section(SIZES, [True])
    section = _native.Section([HIDDEN] * 3, [False, True, False])
    scaled = {"factor": 1.0, "x": (0, 0, HIDDEN), "out": (1, 0, HIDDEN)}
    with pytest.raises(REFUSALS, match="Local buffers"):
        add(section, "scale", **scaled)
    with pytest.raises(REFUSALS, match="No stretch has begun"):
        section.end_stretch()
    add(section, "embedding")
    section.begin_stretch()
    add(section, "scale", **scaled)
    with pytest.raises(REFUSALS, match="outside of others"):
        section.begin_stretch()
    for hidden, says in [(0, "A stretch has not ended"), (1, "Local buffers")]:
        with pytest.raises(REFUSALS, match=says):
            _native.Program(section, sections()[1], (hidden, 0, HIDDEN), X, HIDDEN)
        if hidden == 0:
            section.end_stretch()


def sections():
    """Ids -> rows -> attention of one layer, with rotation by length -> logits."""
    forward, logits = _native.Section(SIZES), _native.Section([HIDDEN])
    add(forward, "embedding")
    add(forward, "linear", parts=matrix(64), bias=None, out=WIDE)
    add(forward, "rotary_tables")
    add(forward, "attention", cache=cache())
    add(logits, "lm_head")
    return forward, logits


def program():
    return _native.Program(*sections(), Y, X, HIDDEN)


def plan(tokens=3, *, start=0, block=1, size=BLOCK, **changes):
    arguments = {
        "query_start": np.array([0, tokens], np.int32),
        "seq_lens": np.array([start + tokens], np.int32),
        "block_table": np.array([[block, block + 1, block + 2]], np.int32),
        "slot_mapping": np.arange(block * size + start, block * size + start + tokens, dtype=np.int64),
        "block_size": size,
    }
    return _native.AttentionPlan(**{**arguments, **changes})


def step(**changes):
    ids = np.array([1, 10, 0])
    return {"token_ids": ids, "positions": np.arange(3), "lengths": np.full(3, 3), "plans": [plan()], **changes}


def computed(made):
    """Run a good step; return what it gives."""
    made.forward(**step())
    out = np.full((3, VOCAB), np.nan, np.float32)
    made.logits(np.arange(3), out)
    assert np.isfinite(out).all()
    return out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"token_ids": np.array([1, VOCAB, 0])}, f"Row {VOCAB}"),
        ({"token_ids": np.array([1, -1, 0])}, "Row -1"),
        ({"token_ids": np.array([1, 2**62, 0])}, "Row"),
        ({"token_ids": np.array([1, 2, 0], np.int32)}, ""),
        ({"token_ids": np.array([1.0, 2, 0])}, ""),
        ({"token_ids": [1, 2, 0]}, ""),
        ({"token_ids": None}, ""),
        ({"token_ids": np.zeros((1, 3), np.int64)}, ""),
        ({"token_ids": np.zeros(6, np.int64)[::2]}, ""),
        ({"token_ids": np.zeros(0, np.int64), "positions": np.zeros(0, np.int64)}, "tokens"),
        ({"token_ids": misaligned(3, np.int64)}, "multiples"),
        ({"positions": misaligned(3, np.int64)}, "multiples"),
        ({"lengths": misaligned(3, np.int64)}, "multiples"),
        ({"token_ids": np.zeros(2, np.int64)}, "position"),
        ({"positions": np.arange(4)}, "position"),
        ({"positions": np.arange(3, dtype=np.int32)}, ""),
        ({"positions": np.arange(6)[::2]}, ""),
        ({"positions": None}, ""),
        ({"lengths": None}, "length"),
        ({"lengths": np.arange(2)}, "length"),
        ({"lengths": np.arange(3.0)}, ""),
        ({"plans": []}, "KV group"),
        ({"plans": None}, ""),
        ({"plans": [None]}, "step's tokens"),
        ({"plans": [3]}, ""),
        ({"plans": lambda: [plan(2)]}, "step's tokens"),
        ({"plans": lambda: [plan(4)]}, "step's tokens"),
        ({"plans": lambda: [plan(size=8)]}, "block size"),
        ({"plans": lambda: [plan(), plan(2)]}, "step's tokens"),
        ({"plans": lambda: [plan(block=BLOCKS)]}, "block_table"),
        ({"plans": lambda: [plan(block_table=np.array([[-1]], np.int32))]}, "block_table"),
        ({"plans": lambda: [plan(block_table=np.array([[2**31 - 1]], np.int32))]}, "block_table"),
        ({"plans": lambda: [plan(slot_mapping=np.array([4, 5, BLOCKS * BLOCK]))]}, "slot_mapping"),
        ({"plans": lambda: [plan(slot_mapping=np.array([4, 5, MOST]))]}, "slot_mapping"),
    ],
)
def test_refuses_steps_and_runs_the_next(changes, says):
    made = program()
    want = computed(made)
    with pytest.raises(REFUSALS, match=says or None) as caught:
        made.forward(**step(**{name: of() if callable(of) else of for name, of in changes.items()}))
    assert str(caught.value)
    if says.startswith("Row") or says in ("block_table", "slot_mapping"):  # seen when buffers were in use already
        with pytest.raises(IndexError):
            made.logits(np.arange(1), np.zeros((1, VOCAB), np.float32))
    assert np.array_equal(computed(made), want)


def test_a_later_layer_may_have_fewer_blocks():
    forward, logits = sections()
    add(forward, "attention", cache=cache(2))
    made = _native.Program(forward, logits, Y, X, HIDDEN)
    computed(made)
    with pytest.raises(ValueError, match="block_table"):
        made.forward(**step(plans=[plan(block=2)]))
    with pytest.raises(IndexError):
        made.logits(np.arange(1), np.zeros((1, VOCAB), np.float32))
    computed(made)


@pytest.mark.parametrize(
    ("index", "out"),
    [
        (np.array([3]), np.zeros((1, VOCAB), np.float32)),
        (np.array([-1]), np.zeros((1, VOCAB), np.float32)),
        (np.array([MOST]), np.zeros((1, VOCAB), np.float32)),
        (np.zeros(0, np.int64), np.zeros((0, VOCAB), np.float32)),
        (np.array([0, 1]), np.zeros((1, VOCAB), np.float32)),
        (np.array([0]), np.zeros((2, VOCAB), np.float32)),
        (np.array([0]), np.zeros((1, VOCAB - 1), np.float32)),
        (np.array([0]), np.zeros(VOCAB, np.float32)),
        (np.array([0]), np.zeros((1, VOCAB))),
        (np.array([0, 1]), np.zeros((VOCAB, 2), np.float32).T),
        (np.array([0]), np.zeros((1, VOCAB), np.float32)[:, ::-1]),
        (np.array([0]), None),
        (misaligned(1, np.int64), np.zeros((1, VOCAB), np.float32)),
        (np.array([0]), misaligned((1, VOCAB))),
        (np.array([0], np.int32), np.zeros((1, VOCAB), np.float32)),
        (np.array([[0]]), np.zeros((1, VOCAB), np.float32)),
        ([0], np.zeros((1, VOCAB), np.float32)),
        (None, np.zeros((1, VOCAB), np.float32)),
        (np.array([0]), np.broadcast_to(np.zeros(VOCAB, np.float32), (1, VOCAB))),
    ],
)
def test_refuses_rows_and_places_of_logits(index, out):
    made = program()
    want = computed(made)
    with pytest.raises(REFUSALS):
        made.logits(index, out)
    again = np.zeros_like(want)
    made.logits(np.arange(3), again)
    assert np.array_equal(again, want)


def test_logits_and_hidden_states_come_after_a_step():
    made = program()
    with pytest.raises(IndexError, match="there are 0"):
        made.logits(np.arange(1), np.zeros((1, VOCAB), np.float32))
    for shape in ((1, HIDDEN), (3, HIDDEN), (0, HIDDEN + 1)):
        with pytest.raises(ValueError, match="rows"):
            made.hidden(np.zeros(shape, np.float32))
    made.forward(**step())
    for shape in ((2, HIDDEN), (3, HIDDEN - 1), (4, HIDDEN)):
        with pytest.raises(ValueError, match="rows"):
            made.hidden(np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("hidden", "rows", "size"),
    [
        ((9, 0, HIDDEN), X, HIDDEN), (Y, (1, 0, HIDDEN), HIDDEN), (Y, X, HIDDEN + 1), (Y, X, 0), (Y, X, -1),
        (Y, X, MOST), ((1, 8, HIDDEN), X, HIDDEN), (Y, (0, 0, -HIDDEN), HIDDEN), (None, X, HIDDEN), (Y, X, None),
    ],
)  # fmt: skip
def test_refuses_places_of_hidden_states(hidden, rows, size):
    with pytest.raises(REFUSALS):
        _native.Program(*sections(), hidden, rows, size)


def test_refuses_sections_that_are_none():
    forward, logits = sections()
    for pair in ((None, logits), (forward, None), (3, logits)):
        with pytest.raises(TypeError):
            _native.Program(*pair, Y, X, HIDDEN)
    with pytest.warns(RuntimeWarning, match="uninitialized"), pytest.raises(TypeError):
        _native.Program.__new__(_native.Program).forward(**step())


@pytest.mark.parametrize("name", ["embedding", "rotary_tables", "attention"])
def test_logits_see_nothing_of_the_step(name):
    forward, _ = sections()
    logits = _native.Section(SIZES)
    add(logits, name)
    add(logits, "lm_head")
    with pytest.raises(ValueError, match="nothing of the step"):
        _native.Program(forward, logits, Y, X, HIDDEN)


def test_the_second_section_alone_ends_with_lm_head():
    forward, logits = sections()
    for name in ("lm_head", "add"):
        with pytest.raises(ValueError, match="last operation"):
            add(logits, name)
    with pytest.raises(ValueError, match="lm_head"):
        _native.Program(forward, _native.Section([HIDDEN]), Y, X, HIDDEN)
    with pytest.raises(ValueError, match="lm_head"):
        _native.Program(logits, sections()[1], X, X, HIDDEN)
    computed(_native.Program(forward, logits, Y, X, HIDDEN))


def test_a_section_belongs_to_one_program_and_changes_no_more():
    forward, logits = sections()
    made = _native.Program(forward, logits, Y, X, HIDDEN)
    want = computed(made)
    for section in (forward, logits):
        for name in ADDED:
            with pytest.raises(ValueError, match="belongs to a program|last operation"):
                add(section, name)
    for pair in ((forward, sections()[1]), (sections()[0], logits)):
        with pytest.raises(ValueError, match="sections of its own"):
            _native.Program(*pair, Y, X, HIDDEN)
    both = _native.Section(SIZES)
    add(both, "lm_head")
    with pytest.raises(ValueError, match="sections of its own"):
        _native.Program(both, both, X, X, HIDDEN)
    assert np.array_equal(computed(made), want)


def test_programs_keep_sections_weights_and_caches_alive():
    forward, logits = sections()
    made = _native.Program(forward, logits, Y, X, HIDDEN)
    want = computed(made)
    del forward, logits
    gc.collect()
    rubbish = [np.full(1 << 12, np.nan, np.float32) for _ in range(500)]
    assert np.array_equal(computed(made), want) and rubbish


def test_copies_norms_and_biases():
    weight, bias = np.ones(32, np.float32), np.ones(64, np.float32)
    forward, logits = _native.Section(SIZES), _native.Section([HIDDEN])
    add(forward, "embedding")
    add(forward, "rms_norm", weight=weight, count=1)
    add(forward, "gated_linear", bias=bias, x=Y, out=X)
    add(logits, "lm_head")
    made = _native.Program(forward, logits, X, X, HIDDEN)
    found = []
    for _ in range(2):
        made.forward(**step(plans=[]))
        found.append(np.zeros((3, HIDDEN), np.float32))
        made.hidden(found[-1])
        weight[:] = bias[:] = np.nan
    assert np.array_equal(*found)


def test_memory_that_there_is_not_is_an_error_and_the_next_step_runs():
    forward = _native.Section([HIDDEN, *[1 << 20] * 40])
    add(forward, "embedding")
    for buffer in range(1, 41):
        add(forward, "scale", factor=1.0, x=(buffer - 1, 0, HIDDEN), out=(buffer, 0, HIDDEN))
    made = _native.Program(forward, sections()[1], (40, 0, HIDDEN), X, HIDDEN)

    def one_token():
        made.forward(np.ones(1, np.int64), np.zeros(1, np.int64), None, [])
        made.logits(np.zeros(1, np.int64), out := np.zeros((1, VOCAB), np.float32))
        return out

    want = one_token()
    for rows in (1 << 20, 1 << 21):  # more than there are addresses for, and more numbers than a buffer may have
        ids = np.zeros(rows, np.int64)
        with pytest.raises((MemoryError, ValueError)):
            made.forward(ids, ids, None, [])
        with pytest.raises(IndexError):
            made.logits(np.zeros(1, np.int64), np.zeros((1, VOCAB), np.float32))
        assert np.array_equal(one_token(), want)


def test_two_threads_take_turns():
    made = program()
    want, failures = computed(made), []

    def work(number):
        try:
            for turn in range(60):
                tokens = 1 + (turn * 7 + number) % 11
                ids = np.arange(tokens) % VOCAB
                made.forward(ids, ids, ids + 1, [plan(tokens)])
                made.size_bytes  # noqa: B018
                try:
                    made.logits(np.arange(tokens), np.zeros((tokens, VOCAB), np.float32))
                    made.hidden(np.zeros((tokens, HIDDEN), np.float32))
                except (IndexError, ValueError):
                    pass  # the other's step was shorter
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert np.array_equal(computed(made), want)
