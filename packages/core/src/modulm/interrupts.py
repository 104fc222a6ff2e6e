"""Ctrl-C held back while accounts are being written, so that what it breaks off can be used again.

Python raises `KeyboardInterrupt` between any two instructions of the main thread. `held` postpones it to its end;
within, `released` lets it through again where a long computation may be broken off. Knows no room.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class _Holder:
    """Takes the place of Ctrl-C's handler and remembers one; a second is not held back."""

    def __init__(self, handler: Callable[[int, Any], Any]) -> None:
        self.handler = handler
        self._came = False

    def __call__(self, number: int, frame: Any) -> None:
        if self._came:
            self.handler(number, frame)
        self._came = True

    def let_through(self) -> None:
        """Give the place back, and do now what was held back."""
        signal.signal(signal.SIGINT, self.handler)
        came, self._came = self._came, False
        if came:
            self.handler(signal.SIGINT, None)


def _handler() -> Any:
    """Return what Ctrl-C calls, or None where it calls no Python: another thread, or the system's own handling."""
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    return handler if callable(handler) else None


@contextmanager
def held() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the outermost `held`."""
    handler = _handler()
    if handler is None or isinstance(handler, _Holder):
        yield
        return
    holder = _Holder(handler)
    signal.signal(signal.SIGINT, holder)
    try:
        yield
    finally:
        holder.let_through()


@contextmanager
def released() -> Iterator[None]:
    """Let Ctrl-C through, now and until the end, inside a `held`."""
    holder = _handler()
    if not isinstance(holder, _Holder):
        yield
        return
    try:
        holder.let_through()
        yield
    finally:
        signal.signal(signal.SIGINT, holder)
