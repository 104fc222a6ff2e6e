"""Step programs over packed weights of few bits, in both precisions, and over mixed kinds side by side.

Compared with the interpreter, which calls the same packed weights as the eager model does: `PackedMatrix.linear`.
"""

import numpy as np
import pytest
import torch
from tensor_arrays import array

from modulm.interfaces import program as ops
from modulm.interfaces.program import Graph, Section, Value
from modulm.interfaces.quantization import BlockFloat4, ChannelInt8, Codebook4, Dense, Float8, GroupedInt, Reordered
from modulm.worker.weights import Parts, parts_of
from modulm_kernels_cpu import packed_dense, packed_int8, packed_q4
from modulm_kernels_cpu.packed_reordered import ReorderedMatrix
from modulm_kernels_cpu.program import NativeProgram

GROUP = 32


def _groups(data):
    return data.view(len(data), -1, GROUP)


def _nibbles(codes):
    codes = codes.to(torch.uint8)
    return codes[:, 0::2] | codes[:, 1::2] << 4


def grouped(data, bits):
    """Round to integers of so many bits with a minimum per group."""
    low, high = _groups(data).amin(-1), _groups(data).amax(-1)
    scales = ((high - low) / (2**bits - 1)).half().float()
    codes = ((_groups(data) - low[..., None]) / scales[..., None]).round().clamp(0, 2**bits - 1)
    codes = codes.reshape(data.shape)
    codes = _nibbles(codes) if bits <= 4 else codes.to(torch.uint8)
    sizes = {"out_features": len(data), "in_features": data.shape[1]}
    return GroupedInt(
        **sizes, bits=bits, group_size=GROUP, codes=array(codes), scales=array(scales), minimums=array(low)
    )


def four_bits(data, precision):
    return packed_q4.pack(grouped(data, 4), precision)


def eight_bits(data, precision):
    return packed_int8.pack(grouped(data, 8), precision)


def codebook(data, precision):
    values = torch.linspace(-1, 1, 16) ** 3
    scales = _groups(data).abs().amax(-1)
    codes = ((_groups(data) / scales[..., None])[..., None] - values).abs().argmin(-1).reshape(data.shape)
    sizes = {"out_features": len(data), "in_features": data.shape[1]}
    weight = Codebook4(
        **sizes, group_size=GROUP, codes=array(_nibbles(codes)), scales=array(scales), codebook=array(values)
    )
    return packed_q4.pack(weight, precision)


def block_float(data, precision):
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 256, (len(data), data.shape[1] // 2), generator=generator, dtype=torch.uint8)
    scales = _groups(data).abs().amax(-1) / 6
    sizes = {"out_features": len(data), "in_features": data.shape[1]}
    return packed_q4.pack(BlockFloat4(**sizes, group_size=GROUP, codes=array(codes), scales=array(scales)), precision)


def channels(data, precision):
    scales = data.abs().amax(-1) / 127
    codes = (data / scales[:, None]).round().to(torch.int8)
    weight = ChannelInt8(out_features=len(data), in_features=data.shape[1], codes=array(codes), scales=array(scales))
    return packed_int8.pack(weight, precision)


def plain(data, precision):
    return packed_dense.pack(Dense(out_features=len(data), in_features=data.shape[1], data=array(data)), precision)


def brain(data, precision):
    return plain(data.bfloat16(), precision)


def reordered(data, precision):
    order = np.random.default_rng(5).permutation(data.shape[1]).astype(np.int32)
    sizes = {"out_features": len(data), "in_features": data.shape[1]}
    weight = Reordered(**sizes, weight=grouped(data[:, torch.from_numpy(order).long()], 4), order=order)
    return ReorderedMatrix(packed_q4.pack(weight.weight, precision), weight)


def float8(data, precision):
    scales = data.abs().amax().view(1) / 448
    sizes = {"out_features": len(data), "in_features": data.shape[1]}
    data = (data / scales).to(torch.float8_e4m3fn)
    return packed_dense.pack(
        Float8(**sizes, data=array(data), scales=array(scales[None]), block=tuple(data.shape)), precision
    )


KINDS = {
    "4 bits": four_bits, "8 bits": eight_bits, "codebook": codebook, "block floats": block_float, "channels": channels,
    "bfloat16": brain, "float8": float8, "reordered": reordered,
}  # fmt: skip


class Shared:
    """One packed weight, or `Parts`, for interpreter and native code alike."""

    def __init__(self, packed):
        self.reference, self.parts = packed, list(parts_of(packed))


def packer(kind, precision):
    return lambda modules, matrices: Shared(KINDS[kind](torch.cat(matrices), precision))


def mixed(precision, kinds=(plain, four_bits, eight_bits)):
    """Parts of different kinds where there are several, as in QKV; else one of them by turns."""

    def pack(modules, matrices):
        if "embed" in modules[0]:
            return Shared(plain(torch.cat(matrices), precision))
        if len(matrices) == 1:
            return Shared(kinds[len(modules[0]) % len(kinds)](matrices[0], precision))
        packed = [kinds[i % len(kinds)](data, precision) for i, data in enumerate(matrices)]
        return Shared(Parts(packed, [len(data) for data in matrices]))

    return pack


SIZES = {"intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}


def run(ours, sequence):
    whole, decoding = sequence(30), [sequence(length) for length in (21, 35)]
    got = [ours.step((whole, 30)), ours.step(*[(s, len(s.tokens) - 3) for s in decoding])]
    late = sequence(25)
    got += [ours.step((decoding[0], 1), (late, count), (decoding[1], 1)) for count in (9, 6)]
    return [*got, ours.step(*[(s, 1) for s in decoding])]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def test_exact_products_equal_the_eager_ones(architecture, kind, engine, sequence):
    ours = engine(architecture, pack=packer(kind, "exact"), attention_bias=True, **SIZES)
    run(ours, sequence)
    assert ours.error() < 1e-4


def typical(pairs):
    """Median over rows of a row's mean difference: fast products are steps, and now and then one falls the other way.

    That is where sums differ in their last bit and so an activation becomes another byte, or another expert is chosen.
    """
    return np.median(np.concatenate([np.abs(a - b).mean(-1) / b.std() for a, b in pairs]))


@pytest.mark.parametrize("kind", ["4 bits", "8 bits", "codebook", "channels"])
def test_fast_products_are_those_of_the_eager_model(kind, engine, sequence):
    fast, exact = (engine("LlamaForCausalLM", pack=packer(kind, name), **SIZES) for name in ("fast", "exact"))
    differ = [(a[0], b[0]) for a, b in zip(run(fast, sequence), run(exact, sequence), strict=True)]
    assert typical(fast.results) < 1e-3 < 1e-2 < typical(differ)


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM", "Gemma2ForCausalLM"])
def test_kinds_side_by_side(architecture, precision, engine, sequence):
    options = {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"] * 2, "head_dim": 16}
    ours = engine(architecture, pack=mixed(precision), **SIZES, **options)
    run(ours, sequence)
    assert typical(ours.results) < 1e-3
    assert precision == "fast" or ours.error() < 1e-4


def test_the_comparison_notices_parts_in_another_order(engine, sequence):
    pack = mixed("exact")

    def swapped(modules, matrices):
        shared = pack(modules, matrices)
        if modules[0].endswith("gate_proj"):
            shared.parts.reverse()
        return shared

    ours = engine("LlamaForCausalLM", pack=swapped, **SIZES)
    run(ours, sequence)
    assert ours.error() > 0.1


def chain(weight, embedding, bias):
    """ids -> rows -> product -> logits: no sum of ours is between them, so bits must agree."""
    values = (Value((), "int64"), Value((64,), "float32"), Value((40,), "float32"), Value((40,), "float32"))
    values += (Value((7,), "float32"),)
    head = plain(torch.randn(7, 40, generator=torch.Generator().manual_seed(5)), "fast")
    graph = Graph(
        values=values,
        forward=Section(
            inputs={"token_ids": 0},
            ops=(
                ops.Embedding(inputs=(0,), outputs=(1,), weight="rows"),
                ops.Linear(inputs=(1,), outputs=(2,), weight="w", bias=None if bias is None else "b"),
            ),
            output=2,
        ),
        logits=Section(inputs={"hidden": 3}, ops=(ops.LMHead(inputs=(3,), outputs=(4,), weight="head"),), output=4),
        weights={"rows": (50, 64), "w": (40, 64), "head": (7, 40)},
        tensors={} if bias is None else {"b": Value((40,), "float32")},
        layers={},
    )
    program = NativeProgram(
        graph,
        weights={"rows": parts_of(embedding), "w": parts_of(weight), "head": [head]},
        tensors={} if bias is None else {"b": bias.numpy()},
        kv_caches={},
        groups={},
        backends={},
    )
    return program, head


@pytest.mark.parametrize("count", [1, 3, 200])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("kind", [*KINDS, "parts"])
def test_a_product_has_the_bits_of_the_eager_one(kind, precision, count):
    generator = torch.Generator().manual_seed(3)
    data, rows, bias = (torch.randn(shape, generator=generator) for shape in ((40, 64), (50, 64), (40,)))
    if kind == "parts":
        sizes = (8, 13, 19)
        made = zip((plain, four_bits, eight_bits), data.split(sizes), strict=True)
        weight = Parts([pack(part, precision) for pack, part in made], sizes)
        embedding = plain(rows, precision)
    else:
        weight, embedding = (KINDS[kind](part, precision) for part in (data, rows))
    ids = torch.randint(0, 50, (count,), generator=generator)
    for added in (None, bias):
        program, head = chain(weight, embedding, added)
        program.forward({"token_ids": ids.numpy(), "positions": ids.numpy()}, [])
        got = np.full((count, 40), np.nan, np.float32)
        program._program.hidden(got)
        want = weight.linear(embedding.rows(ids, torch.float32))
        want = want if added is None else want + added
        assert np.array_equal(got, want.numpy())
        assert np.array_equal(program.logits(np.arange(count)), head.linear(want).numpy())


def test_programs_keep_their_weights_alive():
    import gc

    program, _ = chain(*(four_bits(torch.randn(size, 64), "fast") for size in (40, 50)), torch.ones(40))
    gc.collect()
    noise = [np.random.default_rng(0).integers(0, 255, 1 << 16, np.uint8) for _ in range(64)]
    ids = np.arange(50)
    found = []
    for _ in range(3):
        program.forward({"token_ids": ids, "positions": ids}, [])
        found.append(program.logits(ids).copy())
        gc.collect()
    assert np.isfinite(found).all() and np.array_equal(found[0], found[2]) and len(noise) == 64
