"""Time the attention backend `cpu_attn` beside torch's scaled_dot_product_attention on the same data, in turns.

The shape is SmolLM2-135M's: 9 query heads, 3 of keys, 64 numbers each, 30 layers. Every layer has a cache of its own,
as in a model, so what does not fit the processor's caches comes from memory. torch's side reads keys and values from
dense tensors: it pays for no page table and writes no cache. Times are medians in microseconds per layer.

    python benchmarks/kernels_attention.py [--threads 2] [--rounds 15]
        [--dtypes float32,bfloat16,float16,int8_per_token_head,fp8_e4m3,fp8_e5m2]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from modulm.interfaces.attention import AttentionSpec, BatchLayout
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.attention import CPUAttention

HEADS, KV_HEADS, SIZE, LAYERS, BLOCK = 9, 3, 64, 30, 16
DECODES = [(sequences, context) for sequences in (1, 16) for context in (128, 1024, 4096)]
PREFILLS = [512, 1024]


class Case:
    """`sequences` sequences of `context` tokens, of which `count` are this step's."""

    def __init__(self, sequences: int, context: int, count: int, dtype: str):
        blocks = -(-context // BLOCK)
        rng = np.random.default_rng(0)
        table = 1 + rng.permutation(sequences * blocks).reshape(sequences, blocks)
        positions = np.arange(context - count, context)
        slots = table[:, positions // BLOCK] * BLOCK + positions % BLOCK
        self.layout = BatchLayout(
            query_start=(np.arange(sequences + 1) * count).astype(np.int32),
            seq_lens=np.full(sequences, context, np.int32),
            block_table=table.astype(np.int32),
            slot_mapping=slots.reshape(-1).astype(np.int64),
            block_size=BLOCK,
        )
        self.spec = AttentionSpec(
            num_heads=HEADS, num_kv_heads=KV_HEADS, head_size=SIZE, scale=SIZE**-0.5, kv_cache_dtype=dtype
        )
        shape = CPUAttention.kv_cache_shape(1 + sequences * blocks, BLOCK, KV_HEADS, SIZE, dtype)
        self.layers = 1 if count > 1 else LAYERS  # prefill does not wait for memory
        self.caches = [random_cache(shape, dtype) for _ in range(self.layers)]
        tokens = sequences * count
        self.query, self.key, self.value = (torch.randn(tokens, heads, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS))
        self.dense_query = torch.randn(sequences, HEADS, count, SIZE)
        dense = (sequences, KV_HEADS, context, SIZE)
        self.dense = [(torch.randn(dense), torch.randn(dense)) for _ in range(self.layers)]
        self.is_causal = count > 1
        self.multiply_adds = 2 * sequences * HEADS * SIZE * sum(range(context - count + 1, context + 1))
        self.size_bytes = 2 * sequences * KV_HEADS * context * shape[-1] * self.caches[0].itemsize

    def ours(self) -> None:
        """Attend in every layer; planning is included, once."""
        backend = CPUAttention()
        plan = backend.plan(self.layout, torch.device("cpu"))
        for cache in self.caches:
            backend.forward(self.spec, self.query, self.key, self.value, cache, plan)

    def torchs(self) -> None:
        """Do the same with dense float32 keys and values."""
        for key, value in self.dense:
            F.scaled_dot_product_attention(self.dense_query, key, value, is_causal=self.is_causal, enable_gqa=True)


def random_cache(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Return keys and values of variance 1, of bytes about that: their scales lie behind those of a block and head."""
    if dtype.startswith("fp8"):
        kind = torch.float8_e4m3fn if dtype == "fp8_e4m3" else torch.float8_e5m2
        return torch.randn(shape).to(kind).view(torch.uint8)
    if dtype != "int8_per_token_head":
        return torch.randn(shape).to(getattr(torch, dtype))
    cache = torch.randn(shape).mul(127 / 3).clamp(-127, 127).to(torch.int8)
    cache.flatten(-2)[..., BLOCK * SIZE :] = torch.full((BLOCK,), 3 / 127).view(torch.int8)
    return cache


def times_us(case: Case, rounds: int) -> tuple[float, float, float]:
    """Return medians per layer of ours and torch's, and the least of ours; both are timed in turns."""
    found: dict[Callable[[], None], list[float]] = {case.ours: [], case.torchs: []}
    for _ in range(rounds + 1):
        for run, seconds in found.items():
            start = time.perf_counter()
            run()
            seconds.append((time.perf_counter() - start) / case.layers * 1e6)
    ours, torchs = (sorted(seconds[1:]) for seconds in found.values())
    return statistics.median(ours), statistics.median(torchs), ours[0]


def main() -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtypes", default="float32,bfloat16,float16,int8_per_token_head,fp8_e4m3,fp8_e5m2")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    _native.set_num_threads(options.threads)
    print(f"{_native.isa()}, {options.threads} threads, torch {torch.__version__}; microseconds per layer")
    print(
        f"{'case':24} {'cache':20} {'cpu_attn':>9} {'(least)':>9} {'torch fp32':>10} {'ratio':>6}   rate (of the least)"
    )
    for dtype in options.dtypes.split(","):
        cases = [(f"decode {s} x {c}", s, c, 1) for s, c in DECODES] + [(f"prefill {n}", 1, n, n) for n in PREFILLS]
        for label, sequences, context, count in cases:
            case = Case(sequences, context, count, dtype)
            with torch.inference_mode():
                ours, torchs, least = times_us(case, options.rounds)
            if count == 1:
                rate = f"{case.size_bytes / least / 1e3:.1f} GB/s"
            else:
                rate = f"{case.multiply_adds / least / 1e3:.1f} G multiply-adds/s"
            print(
                f"{label:24} {dtype:20} {ours:9.1f} {least:9.1f} {torchs:10.1f} {torchs / ours:6.2f}   {rate}",
                flush=True,
            )


if __name__ == "__main__":
    main()
