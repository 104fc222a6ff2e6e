"""The machine in words: processor, instruction sets that matter, cores, memory, system. No names, no addresses."""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
"""Of the project."""
_MATTER = ("avx", "f16c", "fma", "amx", "asimd", "sve", "i8mm", "bf16")


def _cpu_field(*names: str) -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in names:
            return value.strip()
    return ""


def instruction_sets() -> list[str]:
    """Return the processor's flags that engines choose kernels by."""
    return [flag for flag in _cpu_field("flags", "Features").split() if flag.startswith(_MATTER)]


def describe() -> dict[str, Any]:
    """Return what a reader needs to judge the figures."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _cpu_field("model name") or platform.machine(),
        "family_model": "/".join(filter(None, (_cpu_field("cpu family"), _cpu_field("model")))),
        "instruction_sets": instruction_sets(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages * page / 2**30),
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
        "load_1_min": round(os.getloadavg()[0], 2),
    }


def words(machine: dict[str, Any]) -> str:
    """Return the description as one line."""
    flags = ", ".join(machine["instruction_sets"])
    return (
        f"{machine['processor']} (family/model {machine['family_model']}), {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['system']}; {flags}"
    )


def without_paths(text: str, others: Mapping[str, str] | None = None) -> str:
    """Return `text` without this machine's paths; `others`, path -> what stands for it, are hidden too."""
    hidden = {str(ROOT): ".", sys.prefix: ".venv", str(Path.home()): "~", **(others or {})}
    for path in sorted(hidden, key=len, reverse=True):
        text = text.replace(path, hidden[path])
    return text
