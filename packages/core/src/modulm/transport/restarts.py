"""An engine that is started again when it is lost: `WatchedClient` over one engine after the other.

Knows when to start and what to say meanwhile; how an engine is started, and how its loss is noticed, is
`engine_process.py`'s. Requests of a lost engine are not tried again: the front end ends them with the error.
"""

import math
import time
from collections.abc import Callable
from typing import Protocol

from modulm.errors import EngineError, ModulmError
from modulm.log import logger
from modulm.outputs import Health
from modulm.transport.client import SILENCE_S, TICK_S, EngineClient
from modulm.types import EngineStats, FinishReason, Request, StepOutput

_log = logger("transport")
_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 30.0
_HEALTHY_S = 300.0
"""An engine that ran for so long has shown that it can; earlier losses are forgotten."""


class StartedEngine(EngineClient, Protocol):
    """An engine that was started, and may still be loading; see `EngineProcess`."""

    is_ready: bool
    load_s: float
    heard_at: float
    report: EngineStats | None


class RestartingClient:
    """`submit`, `abort` and `health` from any thread, the rest from one.

    Args:
        first: Started and ready.
        start: Starts another one and returns at once.
        restarts: How often in a row it is tried.
    """

    def __init__(
        self,
        first: StartedEngine,
        start: Callable[[], StartedEngine],
        *,
        restarts: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.report: EngineStats | None = None
        self._engine: StartedEngine | None = first
        self._start = start
        self._most = restarts
        self._clock = clock
        self._is_shut_down = False
        self._in_a_row = 0
        self._restarts = 0
        self._load_s = 0.0
        self._ready_at = clock()
        self._due = math.inf
        self._reason: str | None = None
        """Why there is no engine that is ready."""

    def submit(self, request: Request) -> None:
        """See `EngineVerbs`. Raises `EngineError` with `retry_after_s` while there is no engine."""
        self._current().submit(request)

    def abort(self, request_ids: list[str], reason: FinishReason = "abort") -> None:
        """See `EngineVerbs`."""
        engine = self._engine
        if engine is not None and self._reason is None:
            engine.abort(request_ids, reason)

    def has_work(self) -> bool:
        """See `EngineVerbs`."""
        return self._engine is not None and self._engine.has_work()

    def stats(self) -> EngineStats:
        """See `EngineVerbs`. Raises `EngineError` while there is no engine."""
        return self._current().stats()

    def poll(self) -> list[StepOutput]:
        """Return what there is to tell. Raises `EngineError` at the loss of an engine, and when the last is gone."""
        self.report = None
        if self._engine is None:
            self._start_when_due()
            return []
        try:
            outputs = self._engine.poll()
        except ModulmError as error:
            self._lost(error)
            raise EngineError(f"The engine was lost: {_public(error)}") from error
        self.report = self._engine.report
        if self._reason is not None and self._engine.is_ready and not self._is_shut_down:
            self._ready_at = self._clock()
            self._reason = None
            _log.warning("The engine runs again, %.1f s after it was started.", self._engine.load_s)
        return outputs

    def health(self) -> Health:
        """Ready while an engine is there and gives signs of life; alive until no more are started."""
        engine, reason = self._engine, self._reason
        if reason is None and engine is not None and (silence_s := self._clock() - engine.heard_at) > SILENCE_S:
            reason = f"The engine has given no sign of life for {silence_s:.0f} s."
        is_gone = self._reason is not None and math.isinf(self._due)
        return Health(alive=not is_gone, ready=reason is None, reason=reason, restarts=self._restarts)

    def shutdown(self) -> None:
        """See `EngineVerbs`."""
        self._is_shut_down = True
        self._reason, self._due = "The engine has been shut down.", math.inf
        if self._engine is not None:
            self._engine.shutdown()

    def _current(self) -> StartedEngine:
        engine, reason = self._engine, self._reason
        if engine is not None and reason is None:
            return engine
        if math.isinf(self._due):
            raise EngineError(f"{reason} It is not started again: start this program anew.")
        wait_s = max(1.0, math.ceil(self._due + self._load_s - self._clock()))
        raise EngineError(f"{reason} It is being started again: try again in {wait_s:.0f} s.", retry_after_s=wait_s)

    def _start_when_due(self) -> None:
        wait_s = self._due - self._clock()
        if wait_s > 0:
            time.sleep(min(wait_s, TICK_S))
            if math.isinf(wait_s):
                raise EngineError(f"{self._reason} It is not started again.")
            return
        self._restarts += 1
        try:
            self._engine = self._start()
        except (OSError, ModulmError) as error:
            self._lost(EngineError(f"No engine process can be started: {error}."))

    def _lost(self, error: ModulmError) -> None:
        engine = self._engine
        if self._is_shut_down:
            self._engine = None
            return
        now = self._clock()
        if engine is not None:
            self._load_s = engine.load_s or self._load_s
        if self._reason is None and now - self._ready_at >= _HEALTHY_S:
            self._in_a_row = 0
        self._in_a_row += 1
        delay_s = min(_FIRST_DELAY_S * 2 ** (self._in_a_row - 1), _LONGEST_DELAY_S)
        # Other threads read these at any moment: when first, why next, and only then is there no engine.
        self._due = now + delay_s if self._in_a_row <= self._most else math.inf
        self._reason = _public(error)
        self._engine = None
        told = error if error.__cause__ is not None else None  # the child's traceback, where there is one
        if math.isinf(self._due):
            _log.error("%s It is not started again: %d starts in a row.", error, self._in_a_row, exc_info=told)
            return
        where = (delay_s, self._in_a_row, self._most)
        _log.error("%s It is started again in %.1f s (%d of %d).", error, *where, exc_info=told)


def _public(error: ModulmError) -> str:
    """What clients may read of a loss: not what was raised inside of the other process, which may name paths."""
    if error.__cause__ is None:
        return str(error)
    return f"The engine process failed ({type(error).__name__}); the log says why."
