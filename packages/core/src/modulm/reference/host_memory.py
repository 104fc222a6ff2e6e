"""Memory of this machine that this process may use: /proc/meminfo and Linux's control groups, versions 1 and 2.

A container's limit is often far below what the machine has. Where nothing can be read, sysconf's pages count.
"""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return what may still be allocated: the least of what the system and each control group above us leave."""
    left = [limit - used for limit, used in _limits(proc, cgroups)]
    return max(0, min([_meminfo("MemAvailable", proc), *left]))


def total_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the machine's memory, or the lowest limit of a control group above us."""
    return min([_meminfo("MemTotal", proc), *(limit for limit, _ in _limits(proc, cgroups))])


def give_back_freed() -> None:
    """Return to the system what was freed and is kept for later, where the C library can (glibc's malloc_trim).

    Loading leaves some 25 MB of pieces of a tokenizer and of metadata, which running never asks for again.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return
    trim(ctypes.c_size_t(0))


def _meminfo(key: str, proc: Path) -> int:
    path = proc / "meminfo"
    if path.exists():
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limits(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, used) bytes of our control group and of those above it that have a limit."""
    path = proc / "self" / "cgroup"
    for line in path.read_text().splitlines() if path.exists() else []:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            base, files = cgroups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = cgroups / "memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = base / group.lstrip("/")
        for level in (folder, *folder.parents):
            found = _limit(level, *files)
            if found is not None:
                yield found
            if level == base:
                break


def _limit(folder: Path, limit_file: str, used_file: str, cache_key: str) -> tuple[int, int] | None:
    """File pages that nobody uses are freed on demand, so they do not count as used."""
    try:
        limit = (folder / limit_file).read_text().strip()
        used = int((folder / used_file).read_text())
        cache = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    if not limit.isdigit():  # "max"
        return None
    return int(limit), max(0, used - int(cache.get(cache_key, 0)))
