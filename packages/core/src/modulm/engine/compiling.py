"""Threads in which forms are compiled. One that takes longer than it may is given up: its place goes to the next.

A thread cannot be ended from outside, so one that was given up goes on until its library returns, beside the others.
A library that never lets go of the interpreter's lock holds up the whole process; nobody here can help that. Knows no
forms; what they are is in `grammar.py`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from modulm.errors import RequestError

_MOST_GIVEN_UP = 4
"""Each still takes processor time and memory; beyond it nothing new is begun."""
T = TypeVar("T")


class Compilers:
    """Runs what it is given in threads, first come, first served.

    Args:
        num_places: Threads at a time, without those that were given up.
    """

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any], float]] = deque()
        self._running: dict[Future[Any], float] = {}

    def submit(self, work: Callable[[], T], timeout_s: float) -> Future[T]:
        """Run `work` as soon as there is a place; it keeps that for `timeout_s` at most."""
        done: Future[T] = Future()
        with self._lock:
            self._waiting.append((done, work, timeout_s))
        self.go_on()
        return done

    def go_on(self) -> None:
        """Begin what waits, as far as places are free by now; refuse it where too much was given up."""
        with self._lock:
            now = time.monotonic()
            num_busy = sum(now <= until for until in self._running.values())
            num_given_up = len(self._running) - num_busy
            while self._waiting and (num_given_up >= _MOST_GIVEN_UP or num_busy < self._num_places):
                done, work, timeout_s = self._waiting.popleft()
                if not done.set_running_or_notify_cancel():
                    continue
                if num_given_up >= _MOST_GIVEN_UP:
                    done.set_exception(_busy(num_given_up))
                    continue
                self._running[done] = now + timeout_s
                num_busy += 1
                # A process that ends does not wait for what was given up.
                threading.Thread(target=self._run, args=(done, work), name="modulm-grammar", daemon=True).start()

    def _run(self, done: Future[T], work: Callable[[], T]) -> None:
        try:
            result = work()
        except BaseException as error:  # native libraries panic with errors that are no Exception
            done.set_exception(error)
        else:
            done.set_result(result)
        with self._lock:
            del self._running[done]
        self.go_on()

    def shutdown(self) -> None:
        """Begin nothing more."""
        self._waiting.clear()


def _busy(num_given_up: int) -> RequestError:
    return RequestError(
        f"structured_outputs is refused: {num_given_up} forms of earlier requests, given up for the time that they "
        "take, are still being compiled. Forms that are ready are served; for a new one try again later, or restart "
        "the engine.",
        parameter="structured_outputs",
    )
