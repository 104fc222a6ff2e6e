"""Ctrl-C held back while accounts are being written, so that what it breaks off can be used again.

Python raises `KeyboardInterrupt` between any two instructions of the main thread. `held` postpones it to its end;
within, `released` lets it through again where a long computation may be broken off. The handler is put in place once,
by the outermost `held`; all others only turn a switch, so that steps of a millisecond can afford them. Knows no room.
"""

import signal
import threading
from collections.abc import Callable
from typing import Any


class _Holder:
    """Takes the place of Ctrl-C's handler and remembers one press; a second is not held back."""

    def __init__(self, handler: Callable[[int, Any], Any]) -> None:
        self.handler = handler
        self.is_open = False
        self._came = False

    def __call__(self, number: int, frame: Any) -> None:
        if self.is_open or self._came:
            self.handler(number, frame)
        else:
            self._came = True

    def let_through(self) -> None:
        """Do now what was held back."""
        if self._came:
            self._came = False
            self.handler(signal.SIGINT, None)


_holder: _Holder | None = None
"""The one in place; belongs to the main thread, which alone runs handlers."""


def _current() -> _Holder | None:
    return _holder if threading.get_ident() == threading.main_thread().ident else None


class _Switch:
    """Sets whether the holder in place lets Ctrl-C through, for as long as the block lasts."""

    __slots__ = ("_before", "_holder", "_opens")

    def __init__(self, holder: _Holder | None, *, opens: bool) -> None:
        self._holder = holder
        self._opens = opens

    def __enter__(self) -> None:
        holder = self._holder
        if holder is None:
            return
        self._before = holder.is_open
        if self._opens:
            holder.let_through()
        holder.is_open = self._opens

    def __exit__(self, *_: object) -> None:
        holder = self._holder
        if holder is None:
            return
        holder.is_open = self._before
        if self._before:
            holder.let_through()


class _Place:
    """Puts a holder in the handler's place, for as long as the block lasts."""

    __slots__ = ("_holder",)

    def __init__(self, handler: Callable[[int, Any], Any]) -> None:
        self._holder = _Holder(handler)

    def __enter__(self) -> None:
        global _holder
        signal.signal(signal.SIGINT, self._holder)
        _holder = self._holder

    def __exit__(self, *_: object) -> None:
        global _holder
        _holder = None  # first: whatever comes in between is held, and let through below
        signal.signal(signal.SIGINT, self._holder.handler)
        self._holder.let_through()


def held() -> _Switch | _Place:
    """Hold Ctrl-C back until the end of the block; inside a `released`, until that block is reached again."""
    if threading.get_ident() != threading.main_thread().ident:
        return _Switch(None, opens=False)
    if _holder is not None:
        return _Switch(_holder, opens=False)
    handler = signal.getsignal(signal.SIGINT)
    # What is not callable is the system's own handling: nothing that Python could hold.
    return _Place(handler) if callable(handler) else _Switch(None, opens=False)


def released() -> _Switch:
    """Let Ctrl-C through, now and until the end of the block, inside a `held`."""
    return _Switch(_current(), opens=True)


def let_through() -> None:
    """Let what was held back so far through, inside a `held`."""
    holder = _current()
    if holder is not None:
        holder.let_through()
