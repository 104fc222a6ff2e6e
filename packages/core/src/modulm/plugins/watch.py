"""What surrounds a plugin's code while it is imported or called at the start: a clock, patience, and another stdout.

A plugin that does not return cannot be ended from outside, so whoever waits is told for whom. What it prints goes to
standard error, where logs go: standard output is the user's. Knows records; failures are `loading.py`'s.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from modulm.log import logger
from modulm.plugins.records import LoadRecord

PATIENCE_S = (5.0, 30.0)
_log = logger("plugins")
_lock = threading.Lock()


@contextmanager
def watched(record: LoadRecord, doing: str) -> Iterator[None]:
    """Surround `doing` ("calling it"); its seconds are added to the record's."""
    started = time.perf_counter()
    done = threading.Event()
    waiter = threading.Thread(target=_wait, args=(record, doing, threading.get_ident(), done), daemon=True)
    waiter.start()
    diverted = _divert()
    try:
        yield
    finally:
        diverted.end()
        done.set()
        waiter.join()  # a program may fork when we have returned
        record.seconds = (record.seconds or 0.0) + time.perf_counter() - started


def _wait(record: LoadRecord, doing: str, thread: int, done: threading.Event) -> None:
    """Say what is waited for, and where in its code it is, when patience ends."""
    waited_s = 0.0
    for patience_s in PATIENCE_S:
        if done.wait(patience_s - waited_s):
            return
        waited_s = patience_s
        frame = sys._current_frames().get(thread)
        where = f" It is at {frame.f_code.co_filename}:{frame.f_lineno}." if frame else ""
        _log.warning(
            "%s: %s has taken %.0f s so far, and the start waits for it.%s It cannot be ended from here: wait, or "
            "interrupt the program and set MODULM_DISABLE_PLUGINS=%s.",
            *(record.asked, doing, waited_s, where, record.name),
        )


class _Diverted:
    """Stands for standard output: what watched threads write goes to standard error, what others do where it went.

    What a plugin has kept of it goes on leading to standard error afterwards (a log handler, mostly).
    """

    def __init__(self, out: Any) -> None:
        self.threads: list[int] = []
        self._out = out

    def end(self) -> None:
        """The calling thread is watched no more."""
        with _lock:
            self.threads.remove(threading.get_ident())
            if not self.threads and sys.stdout is self:
                sys.stdout = self._out

    def __getattr__(self, name: str) -> Any:
        if self.threads and threading.get_ident() not in self.threads:
            return getattr(self._out, name)
        return getattr(sys.stderr, name)


def _divert() -> _Diverted:
    with _lock:
        current: Any = sys.stdout
        diverted = current if isinstance(current, _Diverted) and current.threads else _Diverted(current)
        diverted.threads.append(threading.get_ident())
        sys.stdout = diverted
    return diverted
