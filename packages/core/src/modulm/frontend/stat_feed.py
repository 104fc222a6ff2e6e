"""One stat logger and the thread that calls it, so that whoever has statistics never waits.

What it has not taken in yet waits in a queue of bounded length; what comes when that is full is added up
(`stat_sums.py`). A logger that raises is switched off, with one line in the log. Knows one logger; `stat_loggers.py`
has them all.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from modulm.frontend.stat_sums import add, nothing
from modulm.interfaces.metrics import AggregateStatLoggerBase
from modulm.log import logger
from modulm.types import EngineStats

_log = logger("stats")
_MOST_REPORTS = 256
_REST_S = 0.2
"""The thread takes in what came meanwhile after such a rest: it is woken five times a second, not every step."""
_TURN_S = 0.0005
"""After so long it lets others have the interpreter; after each report, that costs more than most reports."""


class StatFeed:
    """Calls `logger` from a thread. `record`, `reject` and `end` from any thread; they return at once.

    Args:
        asked: What to call the logger in messages: "Stat logger 'x' (package 1.0)".
        interval_s: Seconds between calls of its `log`.
        on_failure: Told the error when the logger has been switched off.

    Attributes:
        logger: The logger; for tests and for its routes.
    """

    def __init__(
        self,
        logger: AggregateStatLoggerBase,
        asked: str,
        interval_s: float,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.logger = logger
        self._asked = asked
        self._interval_s = interval_s
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._reports: list[tuple[int, EngineStats]] = []
        self._sums: dict[int, EngineStats] = {}
        """By engine: all that came after the reports."""
        self._rejections: Counter[str] = Counter()
        self._news = threading.Event()
        self._closed = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name=f"modulm-{asked}", daemon=True)
        self._thread.start()

    def record(self, engine_index: int, stats: EngineStats) -> None:
        """Hand over an engine's report; it is not changed afterwards, by neither side."""
        if self._failed:
            return
        with self._lock:
            if len(self._reports) < _MOST_REPORTS:
                self._reports.append((engine_index, stats))
            else:
                add(self._sums.setdefault(engine_index, nothing()), stats)
        self._wake()

    def reject(self, reason: str) -> None:
        """Hand over that a request was turned away."""
        if not self._failed:
            with self._lock:
                self._rejections[reason] += 1
            self._wake()

    def routes(self) -> Sequence[Any]:
        """Return the logger's routes; none when asking for them fails, which switches it off."""
        found: list[Any] = []
        self._guarded(lambda: found.extend(self.logger.routes()))
        return found

    def end(self) -> None:
        """Let the logger take in what is left, and then end the thread."""
        self._closed.set()
        self._news.set()

    def wait(self, timeout_s: float) -> None:
        """Wait until the thread has ended; a logger that hangs is left behind."""
        self._thread.join(timeout_s)

    def _wake(self) -> None:
        if not self._news.is_set():
            self._news.set()

    def _run(self) -> None:
        self._guarded(self.logger.log_engine_initialized)
        next_log = time.monotonic() + self._interval_s
        while not self._failed:
            self._news.wait(max(0.0, next_log - time.monotonic()))
            if self._news.is_set():
                self._closed.wait(_REST_S)
            self._news.clear()
            self._guarded(self._take_in)
            if time.monotonic() >= next_log:
                self._guarded(self.logger.log)
                next_log = time.monotonic() + self._interval_s
            if self._closed.is_set() and not self._reports:
                return

    def _take_in(self) -> None:
        with self._lock:
            reports = [*self._reports, *self._sums.items()]
            rejections, self._rejections = self._rejections, Counter()
            self._reports, self._sums = [], {}
        begun = time.perf_counter()
        for engine_index, stats in reports:
            self.logger.record(stats.scheduler, stats.iteration, mm_cache_stats=None, engine_idx=engine_index)
            if (now := time.perf_counter()) - begun > _TURN_S:
                begun = now
                time.sleep(0)
        for reason in rejections.elements():
            self.logger.record_admission_rejection(reason)

    def _guarded(self, call: Callable[[], None]) -> None:
        """Call into the logger; what it raises ends it."""
        if self._failed:
            return
        try:
            call()
        except BaseException as error:  # a plugin may raise anything
            self._failed = True
            self._reports, self._sums = [], {}
            _log.exception("%s raised %r. It is switched off until the next start.", self._asked, error)
            self._on_failure(error)
