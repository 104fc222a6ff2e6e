"""Products with 4-bit weights of SmolLM2-135M's shapes, beside what the memory of this machine delivers.

For each shape and number of tokens: time, multiply-adds and bytes of packed weight per second. "cold" walks through
copies of the weight that together exceed the processor's caches, as a decoding step does; "warm" repeats one. Results
go to memory that is there already: fresh pages of a large result can cost more than the product.

    python benchmarks/kernels_linear.py [--isa avx2] [--threads 2] [--seconds 0.3]
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from modulm.interfaces.quantization import GroupedInt
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.packed_dense import PackedMatrix
from modulm_kernels_cpu.packed_q4 import pack

SHAPES = {"qkv": (960, 576), "o": (576, 576), "gate+up": (3072, 576), "down": (576, 1536), "logits": (49152, 576)}
TOKENS = (1, 16, 128)
COLD_BYTES = 128 << 20


def weight(out_features: int, in_features: int) -> GroupedInt:
    """Return a random weight as Q4_1 has them: groups of 32, float16 scales and minimums."""
    work, shape = np.random.default_rng(), (out_features, in_features // 32)
    return GroupedInt(
        out_features=out_features,
        in_features=in_features,
        bits=4,
        group_size=32,
        codes=work.integers(0, 256, (out_features, in_features // 2), np.uint8),
        scales=(work.random(shape) + 0.1).astype(np.float16),
        minimums=-work.random(shape).astype(np.float16),
    )


def seconds_of(call: Callable[[int], object], budget_s: float) -> tuple[float, float]:
    """Return the least and the median of the times of `call(number of the call)`."""
    call(0)
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        call(len(times))
        times.append(time.perf_counter() - start)
    return min(times), statistics.median(times)


def memory_bandwidth(budget_s: float) -> float:
    """Return bytes per second that torch's threads read from 512 MiB: the sum of float32."""
    data = torch.ones(128 << 20)
    return data.nbytes / seconds_of(lambda _: data.sum(), budget_s)[0]


def products(copies: list[PackedMatrix], x: torch.Tensor, out: torch.Tensor) -> Callable[[int], None]:
    """Return a function that multiplies by the copies in turn."""
    arguments = (x.data_ptr(), 0, x.shape[1], len(x), out.data_ptr(), 0)
    natives = [copy._native for copy in copies]
    return lambda number: natives[number % len(natives)].linear(*arguments)


def measure(shape: tuple[int, int], isa: str, precision: str, budget_s: float, name: str) -> None:
    """Print one line for each number of tokens and state of the caches."""
    out_features, in_features = shape
    source = weight(*shape)
    copies = [pack(source, precision, isa)]
    copies += [pack(source, precision, isa) for _ in range(COLD_BYTES // copies[0].size_bytes)]
    for num_tokens in TOKENS:
        x, out = torch.randn(num_tokens, in_features), torch.empty(num_tokens, out_features)
        for state, some in (("warm", copies[:1]), ("cold", copies)):
            if state == "cold" and num_tokens > 1:
                continue
            best, median = seconds_of(products(some, x, out), budget_s)
            multiply_adds = out_features * in_features * num_tokens
            print(
                f"{name:8} {out_features:6} x {in_features:<5} {num_tokens:4} tokens {state}  best {best * 1e6:9.1f}  "
                f"median {median * 1e6:9.1f} us  {multiply_adds / best / 1e9:6.1f} G multiply-adds/s  "
                f"{copies[0].size_bytes / best / 1e9:5.1f} GB/s",
                flush=True,
            )


def main() -> None:
    """Print the machine, its memory's speed, and every shape's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default=_native.isa())
    parser.add_argument("--precision", default="fast", choices=("fast", "exact"))
    parser.add_argument("--threads", type=int, default=_native.num_threads())
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure")
    options = parser.parse_args()
    print("$ python", *sys.argv)
    print(f"{platform.processor() or platform.machine()}, {options.isa}, {options.threads} threads")
    torch.set_num_threads(options.threads)
    _native.set_num_threads(options.threads)
    print(f"memory: {memory_bandwidth(1.0) / 1e9:.1f} GB/s")
    for name, shape in SHAPES.items():
        measure(shape, options.isa, options.precision, options.seconds, name)
    small = pack(weight(16, 32), "fast")
    x = torch.randn(1, 32)
    print(f"one call of linear(x), 16 x 32: {seconds_of(lambda _: small.linear(x), 0.2)[1] * 1e6:.1f} us")


if __name__ == "__main__":
    main()
