"""Operations of step programs against float64 numpy, in views as in whole buffers."""

import math

import ml_dtypes
import numpy as np
import pytest

from modulm.interfaces.quantization import Codebook4, Dense, GroupedInt
from modulm_kernels_cpu import _native, packed_dense, packed_int8, packed_q4

IN, OUT, SIZES = 0, 1, [960, 170, 300, 300]
VIEWS = {"whole": ((IN, 0, 200), (OUT, 0, 170)), "views": ((IN, 7, 120), (OUT, 9, 130))}
ROWS = [1, 5, 700]


def packed(array, dtype=np.float32):
    data = np.ascontiguousarray(array, dtype)
    return packed_dense.pack(Dense(out_features=len(data), in_features=data.shape[1], data=data)).native[0]


def run(add, x, width, *, source=None, result=None, positions=None, lengths=None):
    """Bring rows of x to `source`, run what `add` adds, return `width` numbers of each row at `result`."""
    forward, logits = _native.Section(SIZES), _native.Section([width])
    forward.embedding(packed(x), source or (IN, 0, x.shape[1]))
    add(forward)
    logits.lm_head([(packed(np.ones((1, width))), False)], 1.0, 0.0, (0, 0, width))
    program = _native.Program(forward, logits, result or (OUT, 0, width), (0, 0, width), width)
    count = len(x)
    program.forward(np.arange(count), np.arange(count) if positions is None else positions, lengths, [])
    out = np.full((count, width), np.nan, np.float32)
    program.hidden(out)
    return out


def noise(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def close(got, want, tolerance=2e-6):
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=ROWS)
def rows(request):
    return request.param


@pytest.fixture(params=VIEWS)
def places(request):
    return VIEWS[request.param]


@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize(("count", "size"), [(1, 96), (6, 16), (96, 1)])
def test_rms_norm(rows, places, count, size, unit_offset):
    x, weight = noise(rows, 96), noise(size, seed=1)
    source, result = places
    got = run(
        lambda section: section.rms_norm(weight, count, 1e-2, unit_offset, source, result),
        x, 96, source=source, result=result,
    )  # fmt: skip
    wide = x.astype(np.float64).reshape(rows, count, size)
    normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-2) * (weight.astype(np.float64) + unit_offset)
    close(got, normed.reshape(rows, -1))


def test_add_and_scale(rows, places):
    x = noise(rows, 100)
    source, result = places

    def add(section):
        section.scale(100, -2.5, source, (2, 3, 290))
        section.add(100, source, (2, 3, 290), result)

    close(run(add, x, 100, source=source, result=result), x.astype(np.float64) * -1.5)


def activation(name, x):
    if name == "relu":
        return np.maximum(x, 0)
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "gelu":
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gated(name, gate, up):
    if name != "swigluoai":
        return activation(name, gate) * up
    gate = np.minimum(gate, 7)
    return gate / (1 + np.exp(-1.702 * gate)) * (1 + np.clip(up, -7, 7))


ACTIVATIONS = ["silu", "gelu", "gelu_pytorch_tanh", "relu", "swigluoai"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_activation(rows, places, name):
    x = 4 * noise(rows, 106)
    source, result = places
    got = run(lambda section: section.gated_activation(name, 53, source, result), x, 53, source=source, result=result)
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    close(got, gated(name, gate, up), 1e-5)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_linear_in_parts(rows, places, name, biased):
    x, weight, bias = noise(rows, 96), noise(74, 96, seed=1) / 10, noise(74, seed=2)
    parts = [(packed(part), False) for part in np.split(weight, [20, 41])]
    source, result = places
    got = run(
        lambda section: section.gated_linear(parts, bias if biased else None, name, source, result),
        x, 37, source=source, result=result,
    )  # fmt: skip
    both = x.astype(np.float64) @ weight.T.astype(np.float64) + biased * bias
    close(got, gated(name, both[:, :37], both[:, 37:]), 1e-5)


@pytest.mark.parametrize("splits", [[], [64], [32, 96], [32, 64, 96]], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gates_are_applied_panel_by_panel(rows, places, name, splits):
    x, weight = noise(rows, 96), noise(128, 96, seed=1) / 10
    parts = [(packed(part), False) for part in np.split(weight, splits)]
    source, result = places
    got = run(
        lambda section: section.gated_linear(parts, None, name, source, result), x, 64, source=source, result=result
    )
    both = x.astype(np.float64) @ weight.T.astype(np.float64)
    close(got, gated(name, both[:, :64], both[:, 64:]), 1e-5)


ROUNDS = _native.isa() in {"amx", "avx512_bf16"}  # activations, where weights are bfloat16


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("splits", [[], [64, 96]], ids=str)
@pytest.mark.parametrize("size", [64, 37])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_mlp(rows, places, name, dtype, size, splits, biased):
    """What is between goes packed from product to product where it can, that is with 64 and no bias."""
    x, bias, last_bias = noise(rows, 96), noise(2 * size, seed=2), noise(45, seed=3)
    weight, down = (noise(2 * size, 96, seed=1) / 10).astype(dtype), noise(45, size, seed=4).astype(dtype)
    parts = [(packed(part, dtype), False) for part in np.split(weight, [at for at in splits if at < 2 * size])]
    source, result = places
    biases = (bias, last_bias) if biased else (None, None)
    got = run(
        lambda section: section.gated_mlp(
            parts, biases[0], name, [(packed(down, dtype), False)], biases[1], source, result
        ),
        x, 45, source=source, result=result,
    )  # fmt: skip

    def seen(activations):
        rounds = ROUNDS and dtype != np.float32
        return (activations.astype(ml_dtypes.bfloat16) if rounds else activations).astype(np.float64)

    both = seen(x) @ weight.T.astype(np.float64) + biased * bias
    between = seen(gated(name, both[:, :size], both[:, size:]))
    want = between @ down.T.astype(np.float64) + biased * last_bias
    # What lies at the border between two numbers of bfloat16 may become either, which is rare.
    errors = np.abs(got - want) / (np.abs(between) @ np.abs(down.T.astype(np.float64)) + 1)
    assert errors.max() <= (2**-7 if ROUNDS and dtype != np.float32 else 2e-5)
    assert np.median(errors) <= 1e-6


def of_few_bits(kind, rows, inputs, seed):
    """A weight whose numbers bfloat16 holds, as it is packed and in float64."""
    work = np.random.default_rng(seed)
    codes = work.integers(0, 256 if kind == "bytes" else 16, (rows, inputs), np.uint8)
    scales = np.ldexp(1.0, work.integers(-9, -6, (rows, inputs // 32))).astype(np.float16)
    common = {"out_features": rows, "in_features": inputs, "group_size": 32, "scales": scales}
    wide = scales.astype(np.float64).repeat(32, axis=1)
    if kind == "bytes":
        weight = GroupedInt(bits=8, codes=codes, minimums=-128 * scales, **common)
        return packed_int8.pack(weight).native[0], wide * (codes.astype(np.float64) - 128)
    nibbles = codes[:, 0::2] | codes[:, 1::2] << 4
    if kind == "nibbles":
        weight = GroupedInt(bits=4, codes=nibbles, minimums=-6 * scales, **common)
        return packed_q4.pack(weight).native[0], wide * (codes.astype(np.float64) - 6)
    table = 0.75 * np.array([-12, -8, -6, -4, -3, -2, -1, 0, 0, 1, 2, 3, 4, 6, 8, 12], np.float32)
    weight = Codebook4(codes=nibbles, codebook=table, **common)
    return packed_q4.pack(weight).native[0], wide * table[codes]


@pytest.mark.skipif(_native.isa() != "amx", reason="elsewhere activations of weights of few bits are integers")
@pytest.mark.parametrize(
    "kinds", ["nibbles", "bytes", "codebook", "nibbles bytes", "codebook nibbles", "bytes codebook"]
)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("rows", [20, 45, 700])
def test_gates_and_ups_of_few_bits(rows, places, name, kinds):
    """In one matrix or one each, then by tiles of both; 960 inputs are more than are widened at once."""
    inputs, size, width = (960, 64, 45) if places == VIEWS["whole"] else (96, 32, 45)
    x = noise(rows, inputs)
    kinds = kinds.split()
    parts = [of_few_bits(kind, 2 * size // len(kinds), inputs, seed) for seed, kind in enumerate(kinds)]
    down = noise(width, size, seed=4).astype(ml_dtypes.bfloat16)
    (buffer, at, _), result = places
    got = run(
        lambda section: section.gated_mlp(
            [(native, False) for native, _ in parts], None, name, [(packed(down, ml_dtypes.bfloat16), False)], None,
            (buffer, at, inputs), result,
        ),
        x, width, source=(buffer, at, inputs), result=result,
    )  # fmt: skip
    weight = np.concatenate([numbers for _, numbers in parts])
    both = x.astype(ml_dtypes.bfloat16).astype(np.float64) @ weight.T
    between = gated(name, both[:, :size], both[:, size:]).astype(ml_dtypes.bfloat16).astype(np.float64)
    want = between @ down.T.astype(np.float64)
    errors = np.abs(got - want) / (np.abs(between) @ np.abs(down.T.astype(np.float64)) + 1)
    assert errors.max() <= 2**-7
    assert np.median(errors) <= 1e-6


@pytest.mark.parametrize("onto", ["residual", "product", "elsewhere"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", ["nibbles", "bytes", "codebook", "floats"])
@pytest.mark.parametrize("rows", [1, 16, 20, 45, 700])
def test_a_product_may_end_with_the_sum_after_it(rows, kind, is_first, onto):
    """Results keep their bits: who alone reads a product changes where it is added, not to what.

    Products with a codebook are `step` times whole sums, which then are rounded once less.
    """
    x, residual, product = noise(rows, 96), (IN, 7, 120), (2, 5, 90)
    native = packed(noise(64, 96, seed=1)) if kind == "floats" else of_few_bits(kind, 64, 96, 1)[0]
    result = {"residual": residual, "product": product, "elsewhere": (OUT, 9, 130)}[onto]

    def build(section, alone):
        section.begin_stretch()
        section.linear([(native, False)], None, (IN, 7, 120), product)
        both = [product, residual] if is_first else [residual, product]
        section.add(64, *both, result, [alone and is_first, alone and not is_first])
        section.rms_norm(np.ones(64, np.float32), 1, 1e-5, False, result, (3, 0, 64))
        section.end_stretch()

    def sums(alone):
        return run(lambda section: build(section, alone), x, 64, source=(IN, 7, 120), result=result)

    got, want = sums(True), sums(False)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    if kind != "codebook":
        np.testing.assert_array_equal(got, want)
    alone = run(
        lambda section: section.linear([(native, False)], None, residual, product),
        x,
        64,
        source=residual,
        result=product,
    )
    np.testing.assert_array_equal(want, alone + x[:, :64])


@pytest.mark.parametrize("splits", [[], [32], [64, 96], [32, 33]], ids=str)
def test_parts_that_share_activations(rows, places, splits):
    x, weight = noise(rows, 96), noise(99, 96, seed=1)
    parts = [(packed(part), False) for part in np.split(weight, splits)]
    source, result = places
    got = run(lambda section: section.linear(parts, None, source, result), x, 99, source=source, result=result)
    close(got, x.astype(np.float64) @ weight.T.astype(np.float64), 3e-5)


@pytest.mark.parametrize("biased", [False, True])
def test_linear_in_parts(rows, places, biased):
    x, weight, bias = noise(rows, 96), noise(74, 96, seed=1), noise(74, seed=2)
    parts = [(packed(part), False) for part in np.split(weight, [1, 41])]
    source, result = places
    got = run(
        lambda section: section.linear(parts, bias if biased else None, source, result),
        x, 74, source=source, result=result,
    )  # fmt: skip
    close(got, x.astype(np.float64) @ weight.T.astype(np.float64) + biased * bias, 3e-5)


def tables(positions, lengths=None, dynamic=None, long_inverse=(), inverse=None):
    inverse = [1.0, 0.3, 0.04, 0.001] if inverse is None else inverse
    width = 2 * len(inverse)

    def add(section):
        section.rotary_tables(inverse, 1.25, list(long_inverse), 20, dynamic, (OUT, 0, 40), (OUT, width, 40))

    got = run(add, noise(len(positions), 4), 2 * width, result=(OUT, 0, 40), positions=positions, lengths=lengths)
    cos, sin = np.split(got, 2, axis=1)
    for table in (cos, sin):
        assert np.array_equal(table[:, : width // 2], table[:, width // 2 :])
    return cos[:, : width // 2], sin[:, : width // 2]


def by_frequency(positions, frequencies):
    """The angle is a float32, as models are trained; cos and sin of it are exact."""
    angles = positions[:, None].astype(np.float32) * np.float32(frequencies)
    return 1.25 * np.cos(angles.astype(np.float64)), 1.25 * np.sin(angles.astype(np.float64))


def test_rotary_tables(rows):
    positions = np.random.default_rng(0).integers(0, 1 << 20, rows)
    for got, want in zip(tables(positions), by_frequency(positions, [1.0, 0.3, 0.04, 0.001]), strict=True):
        close(got, want, 2e-7)


def test_long_frequencies_begin_after_the_stated_length():
    positions, lengths = np.array([3, 19, 20, 7]), np.array([19, 20, 21, 1 << 40])
    other = [0.5, 0.1, 0.02, 0.0005]
    short, long = by_frequency(positions, [1.0, 0.3, 0.04, 0.001]), by_frequency(positions, other)
    for got, low, high in zip(tables(positions, lengths, long_inverse=other), short, long, strict=True):
        close(got, np.where(lengths[:, None] > 20, high, low), 2e-7)


@pytest.mark.parametrize("stated", [16, 4096])
def test_dynamic_frequencies(stated):
    lengths = np.array([1, stated - 1, stated, stated + 1, 3 * stated, 40 * stated])
    positions, theta, factor, dim = np.minimum(lengths - 1, 30), 10_000.0, 4.0, 8
    growth = factor * np.maximum(lengths, stated) / stated - (factor - 1)
    base = theta * growth ** (dim / (dim - 2))
    angles = positions[:, None] / base[:, None] ** (np.arange(0, dim, 2) / dim)
    got = tables(positions, lengths, (theta, factor, stated))
    for table, want in zip(got, (1.25 * np.cos(angles), 1.25 * np.sin(angles)), strict=True):
        close(table, want, 3e-5)  # powers in float32, as models are trained


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("top_k", [1, 3, 7])
def test_sparse_moe(rows, places, top_k, biased, normalised):
    experts, hidden, size = 7, 48, 20
    x, router = noise(rows, hidden), noise(experts, hidden, seed=1) / 5
    gate_up, down = noise(experts, 2 * size, hidden, seed=2) / 7, noise(experts, hidden, size, seed=3) / 4
    biases = [biased * noise(*shape, seed=4) for shape in ((experts,), (experts, 2 * size), (experts, hidden))]
    one = lambda matrix, bias: ([(packed(matrix), False)], bias if biased else None)  # noqa: E731
    name = "swigluoai" if biased else "silu"
    source, result = places

    def add(section):
        wide, narrow = (list(map(one, *both)) for both in ((gate_up, biases[1]), (down, biases[2])))
        section.sparse_moe(one(router, biases[0]), wide, narrow, top_k, name, normalised, source, result)

    got = run(add, x, hidden, source=source, result=result)
    wide = x.astype(np.float64)
    shares = softmax(wide @ router.T.astype(np.float64) + biases[0])
    chosen = np.argsort(-shares, axis=1)[:, :top_k]
    kept = np.zeros_like(shares)
    np.put_along_axis(kept, chosen, np.take_along_axis(shares, chosen, 1), 1)
    if normalised:
        kept /= kept.sum(1, keepdims=True)
    want = np.zeros((rows, hidden))
    for expert in range(experts):
        gate, up = np.split(wide @ gate_up[expert].T.astype(np.float64) + biases[1][expert], 2, axis=1)
        term = gated(name, gate, up) @ down[expert].T.astype(np.float64) + biases[2][expert]
        want += kept[:, expert, None] * term
    close(got, want, 2e-5)


def test_experts_of_what_is_no_number_harm_nobody_else():
    x = noise(9, 48)
    x[4] = np.nan
    one = lambda *shape: ([(packed(noise(*shape)), False)], None)  # noqa: E731

    def add(section):
        section.sparse_moe(one(5, 48), [one(8, 48)] * 5, [one(48, 4)] * 5, 2, "silu", True, (IN, 0, 48), (OUT, 0, 48))

    got, without = run(add, x, 48), run(add, np.delete(x, 4, axis=0), 48)
    assert np.isnan(got[4]).all()
    assert np.array_equal(np.delete(got, 4, axis=0), without)


@pytest.mark.parametrize(("divisor", "cap"), [(1.0, 0.0), (7.0, 0.0), (1.0, 2.0), (0.3, 5.0)])
def test_lm_head_of_parts(rows, divisor, cap):
    x, weight = noise(rows, 60), noise(90, 60, seed=1)
    forward, logits = _native.Section([60]), _native.Section([200])
    forward.embedding(packed(x), (0, 0, 60))
    parts = [(packed(part), False) for part in np.split(weight, [11, 50])]
    logits.lm_head(parts, divisor, cap, (0, 9, 100))
    program = _native.Program(forward, logits, (0, 0, 60), (0, 9, 100), 60)
    program.forward(np.arange(rows), np.arange(rows), None, [])
    out = np.full((rows, 90), np.nan, np.float32)
    program.logits(np.arange(rows)[::-1].copy(), out)
    want = x[::-1].astype(np.float64) @ weight.T.astype(np.float64) / divisor
    close(out, cap * np.tanh(want / cap) if cap else want, 1e-4)
