"""What the native attention refuses: by exception, before anything is read or written out of bounds."""

import numpy as np
import pytest
import torch

from modulm.interfaces.attention import AttentionSpec, BatchLayout
from modulm.interfaces.support import Accepted, Rejected
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.attention import CPUAttention

HEADS, KV_HEADS, SIZE, BLOCK, BLOCKS = 4, 2, 8, 4, 5


def plan_arguments(**changes):
    """Two sequences: 6 positions of which 2 are new, and 3 that are all new."""
    arguments = {
        "query_start": np.array([0, 2, 5], np.int32),
        "seq_lens": np.array([6, 3], np.int32),
        "block_table": np.array([[1, 2], [3, 0]], np.int32),
        "slot_mapping": np.array([8, 9, 12, 13, 14], np.int64),
        "block_size": BLOCK,
    }
    return arguments | changes


def call_arguments(**changes):
    arguments = {
        "query": np.zeros((5, HEADS, SIZE), np.float32),
        "key": np.zeros((5, KV_HEADS, SIZE), np.float32),
        "value": np.zeros((5, KV_HEADS, SIZE), np.float32),
        "cache": np.zeros((BLOCKS, 2, KV_HEADS, BLOCK, SIZE), np.float32),
        "out": np.zeros((5, HEADS, SIZE), np.float32),
        "scale": 0.3,
    }
    return arguments | changes


def test_the_arguments_are_fine_as_they_are():
    _native.AttentionPlan(**plan_arguments()).forward(**call_arguments())


@pytest.mark.parametrize(
    "changes",
    [
        {"query_start": np.array([0, 2, 4], np.int32)},
        {"query_start": np.array([1, 2, 5], np.int32)},
        {"query_start": np.array([0, 6, 5], np.int32)},
        {"query_start": np.array([0, 5], np.int32)},
        {"query_start": np.zeros(0, np.int32)},
        {"query_start": np.array([[0, 2, 5]], np.int32)},
        {"query_start": np.array([0, 2, 5], np.int64)},
        {"query_start": None},
        {"query_start": [0, 2, 5]},
        {"seq_lens": np.array([1, 3], np.int32)},
        {"seq_lens": np.array([6, -3], np.int32)},
        {"seq_lens": np.array([9, 3], np.int32)},
        {"seq_lens": np.array([2**31 - 1, 3], np.int32)},
        {"seq_lens": np.array([6], np.int32)},
        {"block_table": np.array([1, 2], np.int32)},
        {"block_table": np.array([[1, 2]], np.int32)},
        {"block_table": np.array([[1, 2], [3, 0]], np.int32).T},
        {"block_table": np.zeros((2, 0), np.int32)},
        {"slot_mapping": np.array([8, 9, -1, 13, 14], np.int64)},
        {"slot_mapping": np.array([8, 9, 12, 13, 14], np.int32)},
        {"slot_mapping": np.array([8, 9], np.int64)},
        {"slot_mapping": None},
        {"block_size": 0},
        {"block_size": -4},
        {"block_size": None},
        {"block_size": 2**40},
    ],
)
def test_refuses_layouts(changes):
    arguments = plan_arguments(**changes)
    if changes.get("block_size") == 2**40:  # a plan alone cannot know; no cache has such blocks
        plan = _native.AttentionPlan(**arguments)
        with pytest.raises(ValueError, match="cache"):
            plan.forward(**call_arguments())
        return
    with pytest.raises((ValueError, TypeError)):
        _native.AttentionPlan(**arguments)


@pytest.mark.parametrize("block", [BLOCKS, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("where", [(0, 0), (0, 1), (1, 0)])
def test_refuses_blocks_that_the_cache_does_not_have(where, block):
    arguments = plan_arguments()
    arguments["block_table"][where] = block
    plan = _native.AttentionPlan(**arguments)
    call = call_arguments(out=np.full((5, HEADS, SIZE), 7.0, np.float32))
    for _ in range(2):
        with pytest.raises(ValueError, match="block_table"):
            plan.forward(**call)
    assert (call["out"] == 7.0).all() and (call["cache"] == 0.0).all()


BYTES = np.zeros((BLOCKS, 2, KV_HEADS, BLOCK, SIZE), np.uint8)
SCALES = np.ones(KV_HEADS, np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cache": BYTES}, "cache_type"),
        ({"cache": BYTES, "cache_type": "nvfp4"}, "cache_type"),
        ({"cache": BYTES, "cache_type": "fp8_e4m3", "key_scales": np.ones(3, np.float32)}, "scales"),
        ({"cache": BYTES, "cache_type": "fp8_e4m3", "value_scales": np.ones(KV_HEADS)}, "scales"),
        ({"cache": BYTES[..., :4].copy(), "cache_type": "fp8_e5m2"}, "contiguous"),
        ({"key_scales": SCALES}, "only a cache of 8-bit floats"),
    ],
)
def test_refuses_bytes_without_a_type_and_scales_that_do_not_fit(changes, message):
    plan = _native.AttentionPlan(**plan_arguments())
    with pytest.raises(ValueError, match=message):
        plan.forward(**call_arguments(**changes))
    fine = {"cache": BYTES.copy(), "cache_type": "fp8_e4m3", "key_scales": SCALES, "value_scales": SCALES}
    plan.forward(**call_arguments(**fine))


def test_does_not_look_at_table_entries_that_nobody_sees():
    arguments = plan_arguments()
    arguments["block_table"][0, 0] = arguments["block_table"][1, 1] = 1 << 30
    plan = _native.AttentionPlan(**arguments)
    plan.forward(**call_arguments(), window=1)
    with pytest.raises(ValueError, match="block_table"):
        plan.forward(**call_arguments(), window=2)


def test_refuses_slots_that_the_cache_does_not_have():
    plan = _native.AttentionPlan(**plan_arguments(slot_mapping=np.array([8, 9, 12, 13, BLOCKS * BLOCK], np.int64)))
    with pytest.raises(ValueError, match="slot_mapping"):
        plan.forward(**call_arguments())


def test_copies_what_it_checked():
    arguments = plan_arguments()
    plan = _native.AttentionPlan(**arguments)
    plan.forward(**call_arguments())
    for name in ("query_start", "seq_lens", "block_table", "slot_mapping"):
        arguments[name][...] = 1 << 30
    plan.forward(**call_arguments())


@pytest.mark.parametrize(
    "changes",
    [
        {"query": None},
        {"query": np.zeros((5, HEADS, SIZE), np.float64)},
        {"query": np.zeros((4, HEADS, SIZE), np.float32)},
        {"query": np.zeros((5, HEADS * SIZE), np.float32)},
        {"query": np.zeros((5, HEADS, SIZE + 1), np.float32)},
        {"query": np.zeros((5, 3, SIZE), np.float32)},
        {"query": np.zeros((5, 0, SIZE), np.float32)},
        {"query": np.zeros((5, HEADS, 2 * SIZE), np.float32)[..., ::2]},
        {"query": np.zeros((5, HEADS, 600), np.float32)},
        {"key": np.zeros((5, 0, SIZE), np.float32)},
        {"key": np.zeros((5, 3, SIZE), np.float32)},
        {"key": np.zeros((5, KV_HEADS, 4), np.float32)},
        {"key": np.zeros((5, KV_HEADS, SIZE), np.float16)},
        {"value": np.zeros((5, 1, SIZE), np.float32)},
        {"value": np.zeros((4, KV_HEADS, SIZE), np.float32)},
        {"value": "value"},
        {"out": np.zeros((5, HEADS, SIZE), np.float16)},
        {"out": np.zeros((5, HEADS, 2 * SIZE), np.float32)[..., :SIZE]},
        {"out": np.zeros((6, HEADS, SIZE), np.float32)},
        {"out": None},
        {"cache": np.zeros((BLOCKS, 2, KV_HEADS, BLOCK, SIZE), np.int16)},
        {"cache": np.zeros((BLOCKS, 2, KV_HEADS, BLOCK, SIZE), np.float64)},
        {"cache": np.zeros((BLOCKS, 2, KV_HEADS, BLOCK + 1, SIZE), np.float32)},
        {"cache": np.zeros((BLOCKS, 2, KV_HEADS, SIZE, BLOCK), np.float32)},
        {"cache": np.zeros((BLOCKS, 1, KV_HEADS, BLOCK, SIZE), np.float32)},
        {"cache": np.zeros((BLOCKS, BLOCK, 2, KV_HEADS, SIZE), np.float32)},
        {"cache": np.zeros((2 * BLOCKS, 2, KV_HEADS, BLOCK, SIZE), np.float32)[::2]},
        {"cache": np.zeros((0, 2, KV_HEADS, BLOCK, SIZE), np.float32)},
        {"cache": None},
        {"cache": np.zeros((BLOCKS, 2, KV_HEADS, BLOCK, SIZE), np.int8)},
        {"cache": np.zeros((BLOCKS, 2, KV_HEADS, BLOCK, SIZE + 4), np.uint8)},
        {"cache": np.zeros((BLOCKS, 2, KV_HEADS, BLOCK, SIZE + 4), np.float32)},
        {
            "cache": np.zeros(1 + BLOCKS * 2 * KV_HEADS * BLOCK * (SIZE + 4), np.int8)[1:].reshape(
                BLOCKS, 2, KV_HEADS, BLOCK, -1
            )
        },
        {"scale": np.nan},
        {"scale": None},
        {"window": -1},
        {"window": None},
        {"soft_cap": -1.0},
        {"soft_cap": np.inf},
        {"sinks": np.zeros(HEADS - 1, np.float32)},
        {"sinks": np.zeros(HEADS, np.float64)},
        {"sinks": np.zeros(2 * HEADS, np.float32)[::2]},
        {"alibi_slopes": np.zeros((HEADS, 1), np.float32)},
        {"cos": np.zeros((5, SIZE), np.float32)},
        {"cos": np.zeros((5, 2 * SIZE), np.float32), "sin": np.zeros((5, 2 * SIZE), np.float32)},
        {"cos": np.zeros((5, 3), np.float32), "sin": np.zeros((5, 3), np.float32)},
        {"cos": np.zeros((4, SIZE), np.float32), "sin": np.zeros((5, SIZE), np.float32)},
        {"cos": np.zeros((5, SIZE), np.float32), "sin": np.zeros((5, SIZE - 2), np.float32)},
        {"isa": "sse9"},
        {"isa": None},
    ],
)
def test_refuses_arrays(changes):
    plan = _native.AttentionPlan(**plan_arguments())
    with pytest.raises((ValueError, TypeError)):
        plan.forward(**call_arguments(**changes))


def test_refuses_outputs_that_cannot_be_written():
    out = np.zeros((5, HEADS, SIZE), np.float32)
    out.flags.writeable = False
    with pytest.raises((ValueError, TypeError)):
        _native.AttentionPlan(**plan_arguments()).forward(**call_arguments(out=out))


def test_empty_steps_are_fine():
    plan = _native.AttentionPlan(
        query_start=np.zeros(1, np.int32), seq_lens=np.zeros(0, np.int32), block_table=np.zeros((0, 3), np.int32),
        slot_mapping=np.zeros(0, np.int64), block_size=BLOCK,
    )  # fmt: skip
    empty = {name: np.zeros((0, heads, SIZE), np.float32) for name, heads in
             (("query", HEADS), ("key", KV_HEADS), ("value", KV_HEADS), ("out", HEADS))}  # fmt: skip
    plan.forward(**call_arguments(**empty))


SPEC = {"num_heads": 9, "num_kv_heads": 3, "head_size": 64, "scale": 0.125}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device_type": "cuda"}, "cuda"),
        ({"head_size": 60}, "head size 60"),
        ({"head_size": 1024}, "head size 1024"),
        ({"head_size": 0}, "head size 0"),
        ({"dtype": "float64"}, "float64"),
        ({"kv_cache_dtype": "int8"}, "int8"),
        ({"kv_cache_dtype": "nvfp4"}, "nvfp4"),
    ],
)
def test_says_what_it_does_not_serve(changes, reason):
    answer = CPUAttention.supports(AttentionSpec(**(SPEC | changes)))
    assert isinstance(answer, Rejected) and reason in answer.reason


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [(dtype, dtype) for dtype in ("float32", "bfloat16", "float16")]
    + [("float32", cache) for cache in ("int8_per_token_head", "fp8_e4m3", "fp8_e5m2")],
)
def test_says_what_it_serves(dtype, cache_dtype):
    answer = CPUAttention.supports(AttentionSpec(**SPEC, dtype=dtype, kv_cache_dtype=cache_dtype))
    assert isinstance(answer, Accepted) and _native.isa() in answer.note


@pytest.mark.parametrize(("dtype", "preferred"), [("float32", "float16"), ("bfloat16", "bfloat16")])
def test_prefers_sixteen_bits(dtype, preferred):
    assert CPUAttention.preferred_kv_cache_dtype(AttentionSpec(**SPEC, dtype=dtype)) == preferred


def test_backend_refuses_a_layout_and_tensors_that_do_not_fit():
    backend, cpu = CPUAttention(), torch.device("cpu")
    with pytest.raises(ValueError, match="seq_lens"):
        backend.plan(BatchLayout(**plan_arguments(seq_lens=np.array([1, 3], np.int32))), cpu)
    plan = backend.plan(BatchLayout(**plan_arguments()), cpu)
    spec = AttentionSpec(num_heads=HEADS, num_kv_heads=KV_HEADS, head_size=SIZE, scale=0.3)
    query, key = torch.zeros(5, HEADS, SIZE), torch.zeros(5, KV_HEADS, SIZE)
    shape = CPUAttention.kv_cache_shape(BLOCKS, BLOCK, KV_HEADS, SIZE)
    backend.forward(spec, query, key, key, torch.zeros(shape), plan)
    with pytest.raises(ValueError, match="cache"):
        backend.forward(spec, query, key, key, torch.zeros(shape).flatten(1), plan)
    with pytest.raises(ValueError, match="query"):
        backend.forward(spec, query[:4], key, key, torch.zeros(shape), plan)
