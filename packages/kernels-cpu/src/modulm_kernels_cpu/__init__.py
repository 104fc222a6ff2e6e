"""Native CPU kernels for modulm: packed weights and paged attention, compiled once per instruction set.

Importing this loads no torch and no native library; `provider.py` is what core asks, the native side starts in
`native/bindings.cpp`.
"""


def isa() -> str:
    """Return the instruction set in use: "amx", "avx512_bf16", "avx512", "avxvnni", "avx2", "neon" or "generic".

    Raises `ImportError` when the native library is missing or broken, and `RuntimeError` when MODULM_CPU_ISA names an
    instruction set that cannot run here or the processor runs none of them.
    """
    from modulm_kernels_cpu.library import native

    return str(native().isa())


def describe() -> str:
    """Return what a start-up line says of these kernels: "instruction set avx512, 2 threads, NUMA node 0"."""
    from modulm_kernels_cpu.library import native, numa_nodes

    count, nodes = native().num_threads(), numa_nodes()
    where = f", NUMA node{'' if len(nodes) == 1 else 's'} {' '.join(map(str, nodes))}" if nodes else ""
    return f"instruction set {isa()}, {count} thread{'' if count == 1 else 's'}{where}"
