"""What this machine's memory delivers to 1 and 2 threads: the bound of decoding with one sequence.

Each thread sums its own part of an array larger than the caches; numpy gives up the interpreter lock meanwhile.
Sums of 64-bit integers: one addition for 8 bytes, so memory is what limits them. Usage: python
benchmarks/machine_limits.py [--mb N] [--repeats N]
"""

import argparse
import os
import platform
import statistics
import threading
import time

import numpy as np


def read_once(parts: list[np.ndarray]) -> float:
    """Return the seconds that all threads together take, each reading its part."""
    ready = threading.Barrier(len(parts) + 1)

    def read(part: np.ndarray) -> None:
        ready.wait()
        part.sum()

    threads = [threading.Thread(target=read, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    ready.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def bandwidths(data: np.ndarray, threads: int, repeats: int) -> list[float]:
    """Return GB/s of every repeat, sorted."""
    parts = np.array_split(data, threads)
    read_once(parts)
    return sorted(data.nbytes / read_once(parts) / 1e9 for _ in range(repeats))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=512, help="size of the array")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    data = np.ones(args.mb << 17, dtype=np.int64)
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, numpy {np.__version__}, {args.mb} MB")
    for threads in (1, 2):
        found = bandwidths(data, threads, args.repeats)
        print(f"memory read, {threads} threads: {statistics.median(found):5.1f} GB/s (best {found[-1]:.1f})")


if __name__ == "__main__":
    main()
