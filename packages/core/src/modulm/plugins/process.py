"""Values that exist once per process and are made anew in a forked child. Knows nothing of plugins."""

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Holds what `make` returns, made on first use in each process.

    Keyed on the process id, so that a child made by fork does not inherit a parent's "already done". The lock is
    re-entrant: `make` may ask for the same value's lock again, and for other values.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._held: tuple[int, T] | None = None
        self.lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_lock)

    def get(self) -> T:
        """Return this process's value."""
        held = self._held
        if held is not None and held[0] == os.getpid():
            return held[1]
        with self.lock:
            if self._held is None or self._held[0] != os.getpid():
                self._held = (os.getpid(), self._make())
            return self._held[1]

    def reset(self) -> None:
        """Forget the value; the next `get` makes it again."""
        self._held = None

    def _renew_lock(self) -> None:
        self.lock = threading.RLock()  # another thread of the parent may have held the old one
