"""Products with dense and 5- to 8-bit weights of SmolLM2-135M's shapes, beside torch's float32 `F.linear` in one run.

For each shape, number of tokens and type of weights: multiply-adds and bytes of packed weight per second, and how many
times as fast as torch that is. Types take turns, and each figure is the best of its turns: a busy neighbour then slows
all alike. "cold" walks through copies of the weight that together exceed the processor's caches, as a decoding step
does; without it one weight is repeated.

    OMP_WAIT_POLICY=passive python benchmarks/kernels_dense.py [--isa avx2] [--threads 2] [--only bf16,int8]

Without that variable torch's threads spin while they wait, and beside a busy neighbour become a hundred times slower.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F

from modulm.interfaces.quantization import ChannelInt8, Dense, Float8, GroupedInt, Weight
from modulm_kernels_cpu import _native, packed_dense, packed_int8

SHAPES = {"qkv": (960, 576), "o": (576, 576), "gate+up": (3072, 576), "down": (576, 1536), "logits": (49152, 576)}
TOKENS = (1, 16, 128)
COLD_BYTES = 128 << 20
ROUNDS = 5


WORK = np.random.default_rng()


def dense(dtype: Any) -> Callable[[int, int], Weight]:
    """Return what makes a weight of plain numbers."""
    return lambda rows, inputs: Dense(
        out_features=rows, in_features=inputs, data=WORK.standard_normal((rows, inputs), np.float32).astype(dtype)
    )


def float8(rows: int, inputs: int) -> Weight:
    """Return a weight of 8-bit floats in blocks of 128 x 128."""
    data = WORK.standard_normal((rows, inputs), np.float32).astype(ml_dtypes.float8_e4m3fn)
    scales = WORK.random((-(-rows // 128), -(-inputs // 128)), np.float32)
    return Float8(out_features=rows, in_features=inputs, data=data, scales=scales, block=(128, 128))


def channels(rows: int, inputs: int) -> Weight:
    """Return a weight of signed bytes with one scale for each row."""
    codes = WORK.integers(-128, 128, (rows, inputs), np.int8)
    return ChannelInt8(out_features=rows, in_features=inputs, codes=codes, scales=WORK.random(rows, np.float32))


def grouped(bits: int, group_size: int, dtype: Any) -> Callable[[int, int], Weight]:
    """Return what makes a weight as Q8_0, Q6_K or Q5_0 have it: no minimums but those of a zero in the middle."""

    def make(rows: int, inputs: int) -> Weight:
        scales = WORK.random((rows, inputs // group_size)).astype(dtype)
        return GroupedInt(
            out_features=rows,
            in_features=inputs,
            bits=bits,
            group_size=group_size,
            codes=WORK.integers(0, 1 << bits, (rows, inputs), np.uint8),
            scales=scales,
            minimums=scales * -(1 << (bits - 1)),
        )

    return make


TYPES: dict[str, tuple[Any, Callable[[int, int], Weight]]] = {
    "fp32": (packed_dense, dense(np.float32)),
    "bf16": (packed_dense, dense(ml_dtypes.bfloat16)),
    "fp16": (packed_dense, dense(np.float16)),
    "fp8": (packed_dense, float8),
    "int8": (packed_int8, channels),
    "q8_0": (packed_int8, grouped(8, 32, np.float16)),
    "q6_k": (packed_int8, grouped(6, 16, np.float32)),
    "q5_0": (packed_int8, grouped(5, 32, np.float16)),
}


def best_seconds(calls: dict[str, Callable[[int], object]], budget_s: float) -> dict[str, float]:
    """Return each call's best time; they take turns."""
    best = dict.fromkeys(calls, float("inf"))
    number = 0
    for _ in range(ROUNDS):
        for name, call in calls.items():
            end = time.perf_counter() + budget_s / ROUNDS
            while True:
                start = time.perf_counter()
                call(number)
                stop = time.perf_counter()
                number += 1
                best[name] = min(best[name], stop - start)
                if stop > end:
                    break
    return best


def measure(name: str, shape: tuple[int, int], num_tokens: int, options: argparse.Namespace) -> None:
    """Print one line for each type."""
    rows, inputs = shape
    x, out = torch.randn(num_tokens, inputs), torch.empty(num_tokens, rows)
    calls: dict[str, Callable[[int], object]] = {}
    sizes = {"torch": rows * inputs * 4}
    copies = 1 + COLD_BYTES // sizes["torch"] if num_tokens == 1 else 1
    plain = [torch.randn(rows, inputs) for _ in range(copies)]
    calls["torch"] = lambda number: F.linear(x, plain[number % len(plain)])
    for kind in options.only.split(","):
        module, make = TYPES[kind]
        weights = [module.pack(make(*shape))]
        sizes[kind] = weights[0].size_bytes
        if num_tokens == 1:
            weights += [module.pack(make(*shape)) for _ in range(COLD_BYTES // sizes[kind])]
        calls[kind] = product(weights, x, out, options.isa)
    best = best_seconds(calls, options.seconds)
    state = "cold" if num_tokens == 1 else ""
    for kind, seconds in best.items():
        print(
            f"{name:8} {rows:6} x {inputs:<5} {num_tokens:4} tokens {state:4}  {kind:6} {seconds * 1e6:9.1f} us  "
            f"{rows * inputs * num_tokens / seconds / 1e9:6.1f} G multiply-adds/s  "
            f"{sizes[kind] / seconds / 1e9:6.1f} GB/s  {best['torch'] / seconds:6.2f} x torch",
            flush=True,
        )


def product(weights: list[Any], x: torch.Tensor, out: torch.Tensor, isa: str) -> Callable[[int], None]:
    """Return a function that multiplies by the weights in turn, into memory that is there already."""
    arguments = (x.data_ptr(), 0, x.shape[1], len(x), out.data_ptr(), 0, isa)
    natives = [weight._native for weight in weights]
    return lambda number: natives[number % len(natives)].linear(*arguments)


def memory_bandwidth() -> float:
    """Return bytes per second that torch's threads read from 512 MiB: the sum of float32."""
    data = torch.ones(128 << 20)
    return data.nbytes / best_seconds({"sum": lambda _: data.sum()}, 1.0)["sum"]


def main() -> None:
    """Print the machine and every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default=_native.isa())
    parser.add_argument("--threads", type=int, default=_native.num_threads())
    parser.add_argument("--seconds", type=float, default=0.2, help="for each figure")
    parser.add_argument("--only", default=",".join(TYPES), help="types of weights")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    _native.set_num_threads(options.threads)
    print("$ python", *sys.argv)
    print(f"{options.isa}, {options.threads} threads, torch {torch.__version__}")
    print(f"memory: {memory_bandwidth() / 1e9:.1f} GB/s")
    for name, shape in SHAPES.items():
        for num_tokens in TOKENS:
            measure(name, shape, num_tokens, options)


if __name__ == "__main__":
    main()
