"""What a plugin may leave behind by mistake: threads, open files, registrations, torch where it was not needed."""

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modulm_testkit.registries import registrations

_PATIENCE_S = 1.0
"""How long a thread that was told to end may take."""


@contextmanager
def leaks(*, torch: bool = False) -> Iterator[list[str]]:
    """Yield a list that is filled, when the block ends, with what the block has left behind.

    Args:
        torch: Whether the block may import torch.
    """
    found: list[str] = []
    threads, files, names = set(threading.enumerate()), open_files(), registrations()
    had_torch = "torch" in sys.modules
    yield found
    gc.collect()
    deadline = time.monotonic() + _PATIENCE_S
    while (left := set(threading.enumerate()) - threads) and time.monotonic() < deadline:
        time.sleep(0.01)
    found += [f"thread {thread.name!r}" for thread in left if thread.is_alive()]
    found += [f"open file {name}" for name in (open_files() - files)]
    found += [f"registrations of {family}" for family, new in registrations().items() if names.get(family) != new]
    if not torch and not had_torch and "torch" in sys.modules:
        found.append("torch, imported")


def open_files() -> set[str]:
    """Return "number -> file" of every open descriptor; empty where the system does not tell."""
    folder, found = Path("/proc/self/fd"), set()
    for number in os.listdir(folder) if folder.exists() else ():
        try:
            found.add(f"{number} -> {os.readlink(folder / number)}")
        except OSError:  # the listing's own descriptor
            continue
    return found
