"""Products in Triton's interpreter equal float64's: odd shapes, groups, orders, blocks of scales, split or not."""

import numpy as np
import pytest
import torch

from modulm_kernels_triton.float8 import Float8Matrix
from modulm_kernels_triton.grouped import GroupedMatrix
from modulm_kernels_triton.rounding import FNUZ, OCP, made_fnuz
from modulm_kernels_triton.steps import Tile
from modulm_testkit.oracles.weights import dequantised

# Share of |x| |W| that a result may be off: half of the last bit of a weight and of a result, where they are narrow.
ERROR = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
TILES = {1: Tile(16, 16, 4, 4), 3: Tile(16, 32, 1, 4), 16: Tile(16, 16, 4, 4), 33: Tile(32, 32, 1, 4)}


def activations(num_tokens, width, dtype=torch.float32):
    rng = np.random.default_rng(num_tokens)
    return torch.from_numpy(rng.normal(size=(num_tokens, width))).to(dtype)


def check(found, x, weight, error):
    numbers, matrix = x.double().numpy(), dequantised(weight)
    size = np.abs(numbers) @ np.abs(matrix).T
    off = np.abs(found.double().numpy() - numbers @ matrix.T) / size
    assert found.dtype == x.dtype and off.max() <= error, f"{off.max():.1e} of |x| |W|, allowed {error:.1e}"


@pytest.mark.parametrize("num_tokens", TILES)
@pytest.mark.parametrize(("bits", "size"), [(4, 32), (4, 64), (4, 128), (4, -1), (3, 16), (8, 32), (8, -1)])
def test_grouped(grouped, num_tokens, bits, size):
    weight = grouped(37, 384, bits, size)
    x = activations(num_tokens, 384)
    found = GroupedMatrix(weight, None, "cpu").product(x, TILES[num_tokens])
    check(found, x, weight, ERROR[x.dtype])


@pytest.mark.parametrize(("bits", "width", "size"), [(4, 96, 32), (4, 50, -1), (4, 352, 32), (8, 75, -1), (4, 2, -1)])
def test_widths_that_no_step_divides(grouped, bits, width, size):
    weight = grouped(5, width, bits, size)
    for split in (1, 4):
        x = activations(3, width)
        check(GroupedMatrix(weight, None, "cpu").product(x, Tile(16, 16, split, 4)), x, weight, ERROR[x.dtype])


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_inputs_in_another_order(grouped, bits):
    weight = grouped(21, 160, bits, 32, reordered=True)
    packed, x = GroupedMatrix(weight.weight, weight.order, "cpu"), activations(3, 160)
    for split in (1, 4):
        check(packed.product(x, Tile(16, 16, split, 4)), x, weight, ERROR[x.dtype])
    index = torch.tensor([20, 0, 20])
    np.testing.assert_allclose(packed.rows(index, torch.float32), dequantised(weight)[index.numpy()], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_activations(grouped, floats, dtype):
    x = activations(7, 256, dtype)
    for split in (1, 4):
        cut = Tile(16, 16, split, 4)
        for weight in (grouped(19, 256, 4, 64), grouped(19, 256, 8, 64)):
            check(GroupedMatrix(weight, None, "cpu").product(x, cut), x, weight, ERROR[dtype])
        weight = floats(19, 256, (1, 0))
        check(Float8Matrix(weight, "cpu", rounds=False).product(x, cut), x, weight, ERROR[dtype])


BLOCKS = [(0, 0), (1, 0), (16, 128), (128, 128), (8, 48)]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("num_tokens", TILES)
def test_float8(floats, num_tokens, block, dtype):
    weight = floats(37, 336, block, dtype)
    x = activations(num_tokens, 336)
    found = Float8Matrix(weight, "cpu", rounds=False).product(x, TILES[num_tokens])
    check(found, x, weight, ERROR[x.dtype])


def test_all_bytes_are_decoded(floats):
    """Also the smallest, which have no leading one, and NaN: as ml_dtypes has it."""
    import ml_dtypes

    for name in ("float8_e4m3fn", "float8_e5m2"):
        weight = floats(1, 256, (0, 0), name)
        every = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))
        weight.data[:], weight.scales[:] = every, 1
        packed = Float8Matrix(weight, "cpu", rounds=False)
        finite = np.isfinite(every.astype(np.float32))
        x = torch.from_numpy(np.eye(256, dtype=np.float32)[finite])
        weight.data[:] = np.where(finite, every, 0).astype(every.dtype)
        found = Float8Matrix(weight, "cpu", rounds=False).linear(x)[:, 0]
        np.testing.assert_array_equal(found.numpy(), every.astype(np.float32)[finite])
        with np.errstate(invalid="ignore"):
            assert torch.isnan(packed.linear(torch.ones(1, 256))).all()


@pytest.mark.parametrize("block", [(0, 0), (1, 0), (16, 128)])
def test_rounded_activations(floats, block):
    """Each token by its own scale: e4m3 has 4 bits, and a row's errors are as often up as down."""
    weight = floats(37, 384, block)
    packed, cut = Float8Matrix(weight, "cpu", rounds=True), Tile(32, 32, 1, 4)
    x = activations(33, 384)
    x[5] *= 1e4
    x[6] = 0
    found = packed.linear(x)
    check(found[x.abs().sum(1) > 0], x[x.abs().sum(1) > 0], weight, 0.01)
    assert (found[6] == 0).all()
    scales = x.abs().amax(1, keepdim=True).clamp(min=1e-12) / 448
    rounded = (x / scales).to(torch.float8_e4m3fn).float() * scales
    wanted = rounded.double().numpy() @ dequantised(weight).T
    np.testing.assert_allclose(packed.product(x, cut, OCP).numpy(), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    exact = Float8Matrix(weight, "cpu", rounds=False).linear(x)
    assert not torch.equal(found, exact)
    check(packed.linear(x[:3]), x[:3], weight, ERROR[x.dtype])  # few are not rounded


def test_amds_floats(floats):
    """The same bits are half as much there, and activations are rounded to that type."""
    weight = floats(16, 64, (1, 0))
    data = torch.from_numpy(weight.data.view(np.uint8).copy())
    data[0, 0], data[0, 1] = 0x80, 0x01
    assert made_fnuz(data)
    half = data.view(torch.float8_e4m3fnuz).float()
    assert torch.equal(2 * half, data.view(torch.float8_e4m3fn).float()) and data[0, 0] == 0
    x = activations(4, 64)
    rounded, scales = FNUZ.rounded(x)  # 4 bits: off by a 16th of a number, or half the smallest there is
    assert rounded.dtype == torch.float8_e4m3fnuz and rounded.float().abs().max() == 240
    back = rounded.float() * scales[:, None] / FNUZ.factor
    assert ((back - x).abs() <= x.abs() / 16 + scales[:, None] / 2**11).all()
    data[3, 4] = 0xFF
    assert not made_fnuz(data)


def test_the_same_bits_every_time(grouped):
    weight, x = grouped(32, 512, 4, 64), activations(2, 512)
    packed = GroupedMatrix(weight, None, "cpu")
    assert torch.equal(packed.product(x, Tile(16, 16, 4, 4)), packed.product(x, Tile(16, 16, 4, 4)))


def test_bytes(grouped, floats):
    assert GroupedMatrix(grouped(16, 128, 4, 64), None, "cpu").size_bytes == 16 * 64 + 16 * 2 * (2 + 4)
    reordered = grouped(16, 128, 4, 64, reordered=True)
    assert GroupedMatrix(reordered.weight, reordered.order, "cpu").size_bytes == 16 * 64 + 16 * 2 * 6 + 4 * 128
    assert Float8Matrix(floats(16, 128, (16, 128)), "cpu", rounds=True).size_bytes == 16 * 128 + 4
