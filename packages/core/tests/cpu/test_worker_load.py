"""Loading apart from real models: stacking of weights, choice of kernels, leftovers, the cache's memory."""

import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from modulm.config import ModelConfig
from modulm.errors import CheckpointError, Unsupported
from modulm.interfaces.checkpoint import TensorInfo
from modulm.interfaces.quantization import (
    BlockFloat4,
    ChannelInt8,
    Codebook4,
    Dense,
    Encoded,
    Float8,
    GroupedInt,
    QuantizationScheme,
    Reordered,
    VectorCodebook,
)
from modulm.interfaces.recipe import Recipe
from modulm.interfaces.support import Accepted, Rejected
from modulm.nn.linear import MergedLinear
from modulm.nn.norm import RMSNorm
from modulm.reference.dequantize import dequantize
from modulm.reference.linear_torch import TorchKernels
from modulm.worker.kv_memory import as_tensors, host_caches
from modulm.worker.load import TensorSource
from modulm.worker.model import load_model
from modulm.worker.weights import Parts, halves_in_order, stacked

CPU = torch.device("cpu")


class Tensors:
    """As much of a `Checkpoint` as loading asks for."""

    path = "tensors"

    def __init__(self, **tensors):
        self.tensors = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        self.num_released = 0

    def release(self):
        self.num_released += 1

    def tensor_names(self):
        return list(self.tensors)

    def info(self, name):
        if name not in self.tensors:
            raise CheckpointError(f"Tensor {name!r} is missing in tensors.")
        tensor = self.tensors[name]
        return TensorInfo(shape=tensor.shape, dtype=tensor.dtype.name, size_bytes=tensor.nbytes)

    def tensor(self, name):
        return self.tensors[name]


def rand(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def make(kind, rows, seed, **changes):
    """Return a random weight of `rows` x 32."""
    codes = np.random.default_rng(seed).integers(0, 256, (rows, 16), dtype=np.uint8)
    shape = {"out_features": rows, "in_features": 32}
    if kind is Dense:
        return Dense(data=rand(rows, 32, seed=seed), **shape)
    if kind is GroupedInt:
        values = {"bits": 4, "group_size": 8} | changes
        groups = 32 // values["group_size"]
        scales, minimums = rand(rows, groups, seed=seed), rand(rows, groups, seed=seed + 1)
        return GroupedInt(codes=codes, scales=scales, minimums=minimums, **values, **shape)
    if kind is ChannelInt8:
        data = np.concatenate([codes, codes], axis=1).view(np.int8)
        return ChannelInt8(codes=data, scales=rand(rows, seed=seed), **shape)
    if kind is Float8:
        block = changes.get("block", (1, 32))
        scales = rand(rows // block[0], 32 // block[1], seed=seed)
        return Float8(
            data=rand(rows, 32, seed=seed).astype(ml_dtypes.float8_e4m3fn), scales=scales, block=block, **shape
        )
    if kind is Codebook4:
        book = changes.get("codebook", np.arange(16, dtype=np.float32))
        return Codebook4(codes=codes, scales=rand(rows, 4, seed=seed), group_size=8, codebook=book, **shape)
    if kind is VectorCodebook:
        book = changes.get("codebook", np.arange(256 * 4, dtype=np.float32).reshape(256, 4))
        places, signs = codes[:, :8].astype(np.uint16), codes[:, :4]
        return VectorCodebook(
            codes=places, signs=signs, scales=rand(rows, 2, seed=seed), group_size=16, codebook=book, **shape
        )
    return BlockFloat4(codes=codes, scales=rand(rows, 2, seed=seed), group_size=16, **shape)


@pytest.mark.parametrize("kind", [Dense, GroupedInt, ChannelInt8, Float8, Codebook4, VectorCodebook, BlockFloat4])
def test_stacked_equals_its_parts(kind):
    parts = [make(kind, rows, seed) for seed, rows in enumerate((6, 2, 4))]
    whole = stacked(parts)
    assert type(whole) is kind
    assert whole.out_features == 12
    expected = torch.cat([dequantize(part, torch.float32, slice(0, part.out_features)) for part in parts])
    assert torch.equal(dequantize(whole, torch.float32, slice(0, 12)), expected)


@pytest.mark.parametrize(
    "kind", [Dense, GroupedInt, ChannelInt8, Float8, Codebook4, VectorCodebook, BlockFloat4, Reordered, Encoded]
)
def test_halves_stored_in_turn_are_put_in_order(kind):
    if kind is Reordered:
        inner = make(GroupedInt, 8, 3)
        order = np.random.default_rng(0).permutation(32).astype(np.int32)
        weight = Reordered(out_features=8, in_features=32, weight=inner, order=order)
    elif kind is Encoded:
        decode = lambda raw: raw.view(np.float16).astype(np.float32)  # noqa: E731
        raw = rand(8, 32).astype(np.float16).view(np.uint8)
        weight = Encoded(out_features=8, in_features=32, format="half", data=raw, decode=decode)
    else:
        weight = make(kind, 8, 3, **({"block": (4, 16)} if kind is Float8 else {}))
    before, after = (dequantize(one, torch.float32, slice(0, 8)) for one in (weight, halves_in_order(weight)))
    assert type(halves_in_order(weight)) is kind
    assert torch.equal(after, torch.cat([before[::2], before[1::2]]))


@pytest.mark.parametrize(
    "parts",
    [
        [make(Dense, 4, 0), make(GroupedInt, 4, 0)],
        [make(GroupedInt, 4, 0), make(GroupedInt, 4, 0, bits=3)],
        [make(GroupedInt, 4, 0), make(GroupedInt, 4, 0, group_size=16)],
        [make(Codebook4, 4, 0), make(Codebook4, 4, 0, codebook=np.ones(16, np.float32))],
        [make(VectorCodebook, 4, 0), make(VectorCodebook, 4, 0, codebook=np.ones((256, 4), np.float32))],
        [make(Float8, 4, 0), make(Float8, 4, 0, block=(2, 16))],
    ],
)
def test_unlike_parts_stay_apart(parts):
    assert stacked(parts) is None


@pytest.mark.parametrize("blocks", [((4, 32), (8, 32)), ((4, 64), (1, 32)), ((3, 32), (8, 32)), ((4, 16), (4, 16))])
def test_float8_parts_keep_their_own_scales(blocks):
    """Also where each part has one scale for all of it, as query, key and value have it."""
    parts = [make_float8(rows, seed, block) for seed, (rows, block) in enumerate(zip((4, 8), blocks, strict=True))]
    whole = stacked(parts)
    expected = torch.cat([dequantize(part, torch.float32, slice(0, part.out_features)) for part in parts])
    assert torch.equal(dequantize(whole, torch.float32, slice(0, 12)), expected)


def make_float8(rows, seed, block):
    scales = rand(-(-rows // block[0]), -(-32 // block[1]), seed=seed)
    data = rand(rows, 32, seed=seed).astype(ml_dtypes.float8_e4m3fn)
    return Float8(data=data, scales=scales, block=block, out_features=rows, in_features=32)


def test_encoded_parts_need_one_decoder():
    def decode(rows):
        return rows.astype(np.float32)

    def encoded(width, by):
        data = np.zeros((2, width), np.uint8)
        return Encoded(format="f", data=data, decode=by, out_features=2, in_features=32)

    assert stacked([encoded(9, decode), encoded(9, decode)]).out_features == 4
    assert stacked([encoded(9, decode), encoded(8, decode)]) is None
    assert stacked([encoded(9, decode), encoded(9, lambda rows: rows)]) is None


def test_parts_behave_as_one_weight():
    sizes, weights = [3, 1, 4], [rand(n, 8, seed=n) for n in (3, 1, 4)]
    kernel = TorchKernels()
    packed = [
        kernel.pack(Dense(out_features=n, in_features=8, data=w), "cpu", "float32")
        for n, w in zip(sizes, weights, strict=True)
    ]
    parts, whole = Parts(packed, sizes), torch.from_numpy(np.concatenate(weights))
    x, index = torch.from_numpy(rand(5, 8)), torch.tensor([7, 0, 3, 3, 2, 4])
    assert torch.allclose(parts.linear(x), x @ whole.T, atol=1e-6)
    assert torch.equal(parts.rows(index, torch.float32), whole[index])
    assert parts.size_bytes == whole.nbytes


class Half(QuantizationScheme):
    """Stores some modules as channel-wise bytes under `<module>.codes` and `.scales`."""

    name = "half"

    @classmethod
    def matches(cls, checkpoint):
        return Accepted()

    @classmethod
    def from_checkpoint(cls, checkpoint):
        return cls()

    def weight(self, checkpoint, module, out_features, in_features):
        if f"{module}.codes" not in checkpoint.tensors:
            return None
        codes, scales = checkpoint.tensor(f"{module}.codes"), checkpoint.tensor(f"{module}.scales")
        return ChannelInt8(out_features=out_features, in_features=in_features, codes=codes, scales=scales)


class Picky(TorchKernels):
    """Multiplies bytes only."""

    name = "picky"

    def supports(self, op, weight, device_type):
        return Accepted() if isinstance(weight, ChannelInt8) else Rejected("only bytes")


def source(checkpoint, kernels=None, scheme=None, dtype="float32"):
    return TensorSource(checkpoint, scheme=scheme, kernels=kernels or [TorchKernels()], device="cpu", dtype=dtype)


def test_first_kernel_that_accepts_packs_and_mixed_kinds_stay_apart():
    scales, halves = np.full(2, 3, np.float32), np.full((4, 8), 2, np.float16)
    checkpoint = Tensors(a__codes=np.ones((2, 8), np.int8), a__scales=scales, b__weight=halves)
    loading = source(checkpoint, kernels=[Picky(), TorchKernels()], scheme=Half())
    packed = loading.packed(["a", "b"], [2, 4], 8)
    assert packed.linear(torch.ones(1, 8)).tolist() == [[24.0] * 2 + [16.0] * 4]
    assert dict(loading.choices) == {
        "picky: linear ChannelInt8": 1,
        "torch: linear Dense (plain torch; not picky: only bytes)": 1,
    }
    assert loading.size_bytes == packed.size_bytes
    assert checkpoint.num_released == 2  # with each weight, not when all are packed
    loading.check_all_used()


def reordered(rows, seed, order):
    return Reordered(out_features=rows, in_features=32, weight=make(GroupedInt, rows, seed), order=order)


class Orders(QuantizationScheme):
    """Layers of 4 x 32 whose inputs are in the order that the checkpoint holds."""

    name = "orders"
    matches = Half.matches
    from_checkpoint = Half.from_checkpoint

    def weight(self, checkpoint, module, out_features, in_features):
        return reordered(out_features, len(module), checkpoint.tensor(f"{module}.order"))


class InOrder(TorchKernels):
    """Multiplies inputs in the order in which they are stored."""

    name = "in order"

    def supports(self, op, weight, device_type):
        return Accepted() if isinstance(weight, GroupedInt) else Rejected("no such kind")


@pytest.mark.parametrize("kernels", [[TorchKernels()], [InOrder(), TorchKernels()]])
def test_reordered_inputs_with_and_without_a_kernel_that_knows_them(kernels):
    one, other = (np.random.default_rng(seed).permutation(32).astype(np.int32) for seed in (1, 2))
    x = torch.from_numpy(rand(5, 32))
    for orders in ((one, one), (one, other)):  # as one weight, and side by side
        loading = source(Tensors(a__order=orders[0], bb__order=orders[1]), kernels=kernels, scheme=Orders())
        packed = loading.packed(["a", "bb"], [6, 4], 32)
        matrices = []
        for rows, seed, order in ((6, 1, orders[0]), (4, 2, orders[1])):
            stored = dequantize(make(GroupedInt, rows, seed), torch.float32).numpy()
            matrices.append(stored[:, np.argsort(order)])
        whole = torch.from_numpy(np.concatenate(matrices))
        torch.testing.assert_close(packed.linear(x), x @ whole.T)
        index = torch.tensor([9, 0, 5, 5])
        assert torch.equal(packed.rows(index, torch.float32), whole[index])
        assert packed.size_bytes >= 10 * (16 + 32) + 32 * 4
        kind = "Reordered" if len(kernels) == 1 else "GroupedInt, its inputs reordered"
        number = 1 if orders[0] is orders[1] else 2
        assert [(text.partition(" (")[0], n) for text, n in loading.choices.items()] == [
            (f"{kernels[0].name}: linear {kind}", number)
        ]


class Ruled(Half):
    """Says what it would do with each layer."""

    def rule(self, checkpoint, module, out_features, in_features):
        return "bytes" if f"{module}.codes" in checkpoint.tensors else None


class Fused(nn.Module):
    """A model of one fused layer and a vector."""

    def __init__(self, config):
        super().__init__()
        self.qkv = MergedLinear(8, {"q": 2, "k": 2})
        self.norm = RMSNorm(8, 1e-6)


def test_a_checkpoint_is_refused_before_anything_is_packed():
    codes, scales = np.ones((2, 8), np.int8), np.ones(2, np.float32)
    good = {f"{name}__{part}": array for name in "qk" for part, array in (("codes", codes), ("scales", scales))}
    good["norm__weight"] = np.ones(8, np.float32)
    packed = []

    class Counting(TorchKernels):
        def pack(self, weight, device, dtype):
            packed.append(weight)
            return super().pack(weight, device, dtype)

    def load(tensors):
        loading = source(Tensors(**tensors), kernels=[Counting()], scheme=Ruled())
        return load_model(Fused, ModelConfig(name="m", hf={}, architectures=[]), loading)

    mixed = {key: array for key, array in good.items() if not key.startswith("k_")} | {"k__weight": rand(2, 8)}
    for tensors, message in (
        (mixed, r"fuses are stored by unlike rules in tensors: q: bytes; k: not quantized\. Quantize all"),
        ({**good, "norm__weight": np.ones(7, np.float32)}, r"'norm.weight'.*\[7\], but the model needs \[8\]"),
        ({**good, "norm__weight": np.ones(8, np.int32)}, "'norm.weight'.*int32 numbers"),
        ({**good, "extra__weight": np.ones(8, np.float32)}, "no place in the model.*'extra.weight'"),
        ({key: array for key, array in good.items() if key != "norm__weight"}, "'norm.weight' is missing"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load(tensors)
        assert not packed
    assert load(good).qkv.forward(torch.ones(1, 8)).tolist() == [[8.0] * 4]
    assert len(packed) == 1


class Computing(Fused):
    """Loads a layer that looks at numbers as it loads."""

    def load(self, name, source):
        self.total = source.tensor("norm.weight", (8,)).sum().item()


def test_layers_that_compute_as_they_load_go_unchecked_ahead():
    tensors = {"q__weight": rand(2, 8), "k__weight": rand(2, 8), "norm__weight": np.ones(8, np.float32)}
    model = load_model(Computing, ModelConfig(name="m", hf={}, architectures=[]), source(Tensors(**tensors)))
    assert model.total == 8.0


def test_no_kernel_says_who_was_asked_and_why():
    loading = source(Tensors(b__weight=np.ones((4, 8), np.float32)), kernels=[Picky()])
    with pytest.raises(
        Unsupported, match=r"'b' \(Dense, 4 x 8\) has no kernel for 'linear' on 'cpu'.*picky: only bytes"
    ):
        loading.packed(["b"], [4], 8)


def test_a_bias_nobody_asks_for_is_left_over():
    ones = np.ones(2, np.float32)
    checkpoint = Tensors(a__codes=np.ones((2, 8), np.int8), a__scales=ones, a__bias=ones)
    loading = source(checkpoint, scheme=Half())
    loading.packed(["a"], [2], 8)
    with pytest.raises(
        CheckpointError, match="1 tensors of tensors have no place in the model, the first being 'a.bias'"
    ):
        loading.check_all_used()
    loading.check_all_used([r"\.bias$"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_weights_reach_kernels_as_stored_and_the_reference_widens_them(dtype):
    wide = torch.from_numpy(rand(6, 8)).to(dtype)
    stored = wide.view(torch.uint16).numpy().view(ml_dtypes.bfloat16 if dtype == torch.bfloat16 else np.float16)
    seen = []

    class Watching(TorchKernels):
        def pack(self, weight, device, dtype):
            seen.append(weight.data)
            return super().pack(weight, device, dtype)

    packed = source(Tensors(a__weight=stored), kernels=[Watching()]).packed(["a"], [6], 8)
    assert seen[0].dtype == stored.dtype and np.shares_memory(seen[0], stored)
    x = torch.from_numpy(rand(3, 8, seed=1))
    assert torch.equal(packed.linear(x), F.linear(x, wide.float()))
    assert packed.size_bytes == 6 * 8 * 4


def test_other_floats_become_float32():
    double, tiny = rand(6, 8).astype(float), rand(6, 8).astype(ml_dtypes.float8_e5m2)
    loading = source(Tensors(a__weight=double, b__weight=tiny), dtype="bfloat16")
    for name, array in (("a", double), ("b", tiny)):
        packed = loading.packed([name], [6], 8)
        want = torch.from_numpy(array.astype(np.float32)).bfloat16()
        assert torch.equal(packed.rows(torch.arange(6), torch.bfloat16), want)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_plain_tensors_are_rounded_as_torch_rounds(dtype):
    numbers = np.concatenate(
        [rand(5000) * 10.0 ** rand(5000, seed=1), [1e30, -1e30, 65520, 1e-8, -0.0, np.inf, np.nan]]
    )
    stored = numbers.astype(np.float32)
    stored.flags.writeable = False  # as on a mapped file
    loading = source(Tensors(a=stored), dtype=dtype)
    want = torch.from_numpy(stored.copy()).to(getattr(torch, dtype))
    tensor = loading.tensor("a", stored.shape)
    assert tensor.dtype == want.dtype
    torch.testing.assert_close(tensor, want, rtol=0, atol=0, equal_nan=True)
    assert loading.array("a", stored.shape).dtype.name == dtype
    assert loading.size_bytes == 2 * want.nbytes
    tensor.fill_(1)
    assert stored[0] == numbers[0].astype(np.float32)


def test_recipes_pack_the_same_again():
    stack = rand(3, 6, 8, seed=5).astype(ml_dtypes.bfloat16)
    tensors = {
        "a__codes": np.ones((2, 8), np.int8),
        "a__scales": rand(2),
        "b__weight": rand(4, 8),
        "c__weight": rand(5, 8),
    }
    checkpoint = Tensors(**tensors, stack=stack, turned=stack.swapaxes(1, 2))
    loading, later = source(checkpoint, scheme=Half()), source(checkpoint, scheme=Half())
    packed = [
        loading.packed(["a", "b"], [2, 4], 8),  # of two kinds, side by side
        loading.packed(["b", "c"], [4, 5], 8),
        loading.packed(["c"], [5], 8, op="embedding"),
        *(loading.packed_slice("stack", (3, 6, 8), index) for index in range(3)),
        loading.packed_slice("turned", (3, 6, 8), 1, transposed=True),
        loading.packed_slice("turned", (3, 6, 8), 2, transposed=True, in_turn=True),
    ]
    loading.check_all_used()
    x = torch.from_numpy(rand(7, 8, seed=9))
    for one in packed:
        recipe = msgspec.json.decode(msgspec.json.encode(loading.recipe(one)), type=Recipe)
        assert recipe == loading.recipe(one)
        again = later.pack(recipe)
        assert again is not one and later.recipe(again) == recipe
        assert torch.equal(again.linear(x), one.linear(x))
    later.check_all_used()
    assert (later.size_bytes, later.choices) == (loading.size_bytes, loading.choices)
    assert loading.recipe(later) is None
    wanted = [*stack, stack[1], np.concatenate([stack[2][::2], stack[2][1::2]])]
    for one, matrix in zip(packed[3:], wanted, strict=True):
        assert torch.equal(one.linear(x), F.linear(x, torch.from_numpy(matrix.astype(np.float32))))


def test_a_slice_that_does_not_fit():
    loading = source(Tensors(stack=rand(3, 6, 8)))
    with pytest.raises(CheckpointError, match=r"'stack'.*\[3, 6, 8\], but the model needs \[4, 6, 8\]"):
        loading.packed_slice("stack", (4, 6, 8), 0)
    with pytest.raises(CheckpointError, match=r"'stack'.*\[3, 6, 8\], but the model needs \[None, 6, 9\]"):
        loading.pack(Recipe(("stack",), (6,), 9, "linear", slice=0))
    for index in (-1, 3):
        with pytest.raises(CheckpointError, match=f"'stack'.*no matrix {index} of 3"):
            loading.pack(Recipe(("stack",), (6,), 8, "linear", slice=index))


class OwnLinear(nn.Module):
    """A model of somebody who uses torch's own layers."""

    unneeded_tensors = (r"^extra\.",)

    def __init__(self, config):
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.register_buffer("table", torch.empty(4))


def test_plain_torch_modules_are_filled_by_name():
    tensors = {"inner__weight": rand(2, 3), "inner__bias": rand(2).astype(float), "table": rand(4), "extra__x": rand(1)}
    loading = source(Tensors(**tensors), dtype="bfloat16")
    model = load_model(OwnLinear, ModelConfig(name="m", hf={}, architectures=[]), loading)
    assert model.inner.weight.dtype == torch.bfloat16
    assert torch.equal(model.inner.weight, torch.from_numpy(tensors["inner__weight"]).bfloat16())
    assert torch.equal(model.inner.bias, torch.from_numpy(tensors["inner__bias"]).bfloat16())
    assert torch.equal(model.table, torch.from_numpy(tensors["table"]).bfloat16())
    del tensors["table"]
    with pytest.raises(CheckpointError, match="'table' is missing"):
        load_model(OwnLinear, ModelConfig(name="m", hf={}, architectures=[]), source(Tensors(**tensors)))


def test_layers_of_one_buffer_share_memory_each_in_its_shape():
    shapes = {"a": (4, 2, 8), "b": (4, 16), "c": (4, 8)}
    dtypes = {"a": "float32", "b": "float32", "c": "bfloat16"}
    caches = as_tensors(host_caches([("a", "b"), ("c",)], shapes, dtypes))
    assert caches["c"].dtype == torch.bfloat16
    assert {name: tuple(t.shape) for name, t in caches.items()} == shapes
    assert all(t.data_ptr() % 64 == 0 and not t.any() for t in caches.values())
    caches["a"][2] = 7.0
    assert caches["b"].tolist() == [[0.0] * 16, [0.0] * 16, [7.0] * 16, [0.0] * 16]
    assert not caches["c"].any()
