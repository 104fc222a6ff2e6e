"""Norms, gated activations, rotary positions and residuals in native code against float64, on every instruction set."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from modulm_kernels_cpu import _native

ISAS = [name for name in ("generic", "avx2", "avxvnni", "avx512", "neon") if _native.can_run(name)]
SIZES = [1, 3, 4, 7, 8, 15, 16, 17, 31, 64, 67, 576, 1536]
ROWS = [1, 2, 5, 67]


def random(*shape, seed=0, spread=3.0):
    return (np.random.default_rng(seed).normal(size=shape) * spread).astype(np.float32)


def guarded(*shape):
    """An output of NaN, with numbers before and behind it that must stay."""
    count = int(np.prod(shape))
    memory = np.full(count + 64, 7.0, np.float32)
    memory[32 : 32 + count] = np.nan
    return memory[32 : 32 + count].reshape(shape), lambda: (memory[:32] == 7.0).all() and (memory[-32:] == 7.0).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("unit_offset", [False, True])
def test_rms_norm(unit_offset, rows, size, isa):
    x, weight = random(rows, size), random(size, seed=1)
    out, is_intact = guarded(rows, size)
    _native.rms_norm(x, weight, out, 1e-5, unit_offset, isa)
    wide = x.astype(np.float64)
    scale = weight.astype(np.float64) + (1.0 if unit_offset else 0.0)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)
    assert is_intact()
    _native.rms_norm(x, weight, x, 1e-5, unit_offset, isa)
    np.testing.assert_array_equal(x, out)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_gated_activation(name, rows, size, isa):
    x = random(rows, 2 * size)
    out, is_intact = guarded(rows, size)
    _native.gated_activation(x, out, name, isa)
    gate, up = torch.from_numpy(x).double().chunk(2, dim=1)
    expected = (F.silu(gate) if name == "silu" else F.gelu(gate, approximate="tanh")) * up
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-6)
    assert is_intact()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_activations_over_the_whole_range(name, isa):
    gate = np.concatenate([np.linspace(-120, 120, 40001), [-1e30, 1e30, -np.inf, np.inf, np.nan, 0.0, -0.0, 1e-40]])
    gate = gate.astype(np.float32)
    x = np.concatenate([gate, np.ones_like(gate)])[None]
    out, _ = guarded(1, len(gate))
    _native.gated_activation(x, out, name, isa)
    wide = torch.from_numpy(gate)  # in float32, so that the infinities of both sides are the same
    expected = (F.silu(wide) if name == "silu" else F.gelu(wide, approximate="tanh")).numpy()
    ordinary = np.isfinite(gate) & (np.abs(gate) < 1e29)
    np.testing.assert_allclose(out[0, ordinary], expected[ordinary], rtol=4e-6, atol=1e-6)
    assert np.isnan(out[0, np.isnan(gate)]).all()
    assert (out[0, gate == 1e30] == np.float32(1e30)).all() and (out[0, gate == np.inf] == np.inf).all()
    assert np.abs(out[0, gate == -1e30]).max() < 1e-5


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [2, 6, 8, 34, 64])
@pytest.mark.parametrize("tokens", ROWS)
def test_rotary(tokens, width, isa):
    memory = random(tokens, 3 * 64 + 40)
    before = memory.copy()
    x = memory[:, 8 : 8 + 3 * 64].reshape(tokens, 3, 64)
    assert np.shares_memory(x, memory) or tokens == 1
    x = torch.from_numpy(memory)[:, 8 : 8 + 3 * 64].unflatten(1, (3, 64))
    angles = random(tokens, width // 2, seed=2)
    angles = np.concatenate([angles, angles], axis=1).astype(np.float64)
    cos, sin = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
    _native.rotary(x, cos, sin, isa)
    expected = before.astype(np.float64)
    heads = expected[:, 8 : 8 + 3 * 64].reshape(tokens, 3, 64)
    first, second = heads[..., : width // 2].copy(), heads[..., width // 2 : width].copy()
    cos, sin = (table[:, None, : width // 2].astype(np.float64) for table in (cos, sin))
    heads[..., : width // 2] = first * cos - second * sin
    heads[..., width // 2 : width] = second * cos + first * sin
    expected[:, 8 : 8 + 3 * 64] = heads.reshape(tokens, -1)
    np.testing.assert_allclose(memory, expected, rtol=1e-6, atol=2e-6)
    np.testing.assert_array_equal(memory[:, :8], before[:, :8])
    np.testing.assert_array_equal(memory[:, 200:], before[:, 200:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [*SIZES, 200_000])
def test_add(size, isa):
    a, b = random(1, size), random(1, size, seed=1)
    out, is_intact = guarded(1, size)
    _native.add(a, b, out, isa)
    np.testing.assert_array_equal(out, a + b)
    assert is_intact()
    _native.add(a, b, a, isa)
    np.testing.assert_array_equal(a, out)


@pytest.mark.parametrize("isa", ISAS)
def test_bits_do_not_depend_on_threads(isa):
    threads, found = _native.num_threads(), []
    x, weight = random(67, 576), random(576, seed=1)
    try:
        for count in (1, 2, 3):
            _native.set_num_threads(count)
            normed, gated = np.empty_like(x), np.empty((67, 288), np.float32)
            _native.rms_norm(x, weight, normed, 1e-5, False, isa)
            _native.gated_activation(x, gated, "silu", isa)
            found.append((normed, gated))
    finally:
        _native.set_num_threads(threads)
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


OVERLAP = zeros(100)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("rms_norm", (zeros(2, 8), zeros(7), zeros(2, 8), 1e-5)),
        ("rms_norm", (zeros(2, 8), zeros(8), zeros(3, 8), 1e-5)),
        ("rms_norm", (zeros(2, 8), zeros(8), zeros(2, 8, dtype=np.float64), 1e-5)),
        ("rms_norm", (zeros(2, 16)[:, ::2], zeros(8), zeros(2, 8), 1e-5)),
        ("rms_norm", (None, zeros(8), zeros(2, 8), 1e-5)),
        ("rms_norm", (zeros(2, 8), zeros(8), zeros(2, 8), float("nan"))),
        ("rms_norm", (OVERLAP[:16].reshape(2, 8), zeros(8), OVERLAP[8:24].reshape(2, 8), 1e-5)),
        ("gated_activation", (zeros(2, 7), zeros(2, 3), "silu")),
        ("gated_activation", (zeros(2, 8), zeros(2, 8), "silu")),
        ("gated_activation", (zeros(2, 8), zeros(2, 4), "relu")),
        ("gated_activation", (OVERLAP[:16].reshape(2, 8), OVERLAP[8:16].reshape(2, 4), "silu")),
        ("gated_activation", (OVERLAP[:16].reshape(2, 8), OVERLAP[:8].reshape(2, 4), "silu")),
        ("rotary", (zeros(2, 3, 8), zeros(3, 8), zeros(3, 8))),
        ("rotary", (zeros(2, 3, 8), zeros(2, 7), zeros(2, 7))),
        ("rotary", (zeros(2, 3, 8), zeros(2, 10), zeros(2, 10))),
        ("rotary", (zeros(2, 3, 8), zeros(2, 8), zeros(2, 6))),
        ("rotary", (zeros(2, 3, 16)[..., ::2], zeros(2, 8), zeros(2, 8))),
        ("rotary", (np.broadcast_to(zeros(1, 3, 8), (2, 3, 8)), zeros(2, 8), zeros(2, 8))),
        ("rotary", (torch.zeros(1, 3, 8).expand(2, 3, 8), zeros(2, 8), zeros(2, 8))),
        ("add", (zeros(2, 8), zeros(2, 7), zeros(2, 8))),
        ("add", (zeros(2, 8), zeros(2, 8), zeros(8, 2))),
        ("add", (zeros(2, 8), OVERLAP[:16].reshape(2, 8), OVERLAP[1:17].reshape(2, 8))),
        ("add", (zeros(2, 8), zeros(2, 8), None)),
    ],
)
def test_refuses(function, arguments):
    with pytest.raises((ValueError, TypeError)):
        getattr(_native, function)(*arguments)
