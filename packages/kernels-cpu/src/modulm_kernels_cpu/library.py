"""The native library, with a clear message where it cannot be loaded. Knows nothing of what is in it."""

import os
import platform
import sys
from pathlib import Path
from types import ModuleType


def native() -> ModuleType:
    """Return the native module. Raises `ImportError` that says what to do; its cause is chained."""
    try:
        from modulm_kernels_cpu import _native
    except ImportError as error:
        raise ImportError(
            f"The native library of modulm-kernels-cpu cannot be loaded on {sys.platform} {platform.machine()} with "
            f"Python {platform.python_version()}: {error}. Install it for this machine: pip install --force-reinstall "
            "--no-deps modulm-kernels-cpu; or do without it: --kernels torch.",
            name=error.name,
            path=error.path,
        ) from error
    return _native


def numa_nodes(system: Path = Path("/sys/devices/system/node")) -> list[int]:
    """Return the memory nodes that the cores this process may use belong to; empty where the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    allowed, nodes = os.sched_getaffinity(0), []
    for folder in system.glob("node[0-9]*"):
        spans = [span.split("-") for span in (folder / "cpulist").read_text().strip().split(",") if span]
        if any(not allowed.isdisjoint(range(int(span[0]), int(span[-1]) + 1)) for span in spans):
            nodes.append(int(folder.name.removeprefix("node")))
    return sorted(nodes)
