"""An engine in the caller's own process and thread: polling is what makes it run.

Knows the engine by its shape only, so that neither room imports the other.
"""

import threading
import time
from typing import Protocol

from modulm.outputs import Health
from modulm.transport.client import SILENCE_S, TICK_S, EngineVerbs
from modulm.types import EngineStats, FinishReason, Request, StepOutput


class SteppedEngine(EngineVerbs, Protocol):
    """The shape of `engine/loop.py`'s `Engine`."""

    def step(self) -> list[StepOutput]:
        """Run one step and return what it brought, to whom."""


class InProcessClient:
    """`EngineClient` over an engine object."""

    def __init__(self, engine: SteppedEngine) -> None:
        self._engine = engine
        self.has_work = engine.has_work
        self.stats = engine.stats
        self.shutdown = engine.shutdown

    def submit(self, request: Request) -> None:
        """See `EngineVerbs`."""
        self._engine.submit(request)

    def abort(self, request_ids: list[str], reason: FinishReason = "abort") -> None:
        """See `EngineVerbs`."""
        self._engine.abort(request_ids, reason)

    def poll(self) -> list[StepOutput]:
        """Run one step if there is work, and return its outputs."""
        return self._engine.step() if self._engine.has_work() else []


class ThreadClient(InProcessClient):
    """`WatchedClient` over an engine object that one thread polls, and nobody else.

    Args:
        reports: Whether to take a report of every step.
    """

    def __init__(self, engine: SteppedEngine, *, reports: bool = False) -> None:
        super().__init__(engine)
        self._reports = reports
        self._news = threading.Event()
        self._stepped_at = time.monotonic()
        self.report: EngineStats | None = None

    def submit(self, request: Request) -> None:
        """See `EngineVerbs`."""
        super().submit(request)
        self._news.set()

    def abort(self, request_ids: list[str], reason: FinishReason = "abort") -> None:
        """See `EngineVerbs`."""
        super().abort(request_ids, reason)
        self._news.set()

    def poll(self) -> list[StepOutput]:
        """Run one step, if need be after a moment's waiting for work."""
        if not self._engine.has_work():
            self._stepped_at = time.monotonic()
            self._news.wait(TICK_S)
            self._news.clear()
        stepped = self._engine.has_work()
        outputs = super().poll()
        self._stepped_at = time.monotonic()
        self.report = self._engine.stats() if self._reports and stepped else None
        return outputs

    def health(self) -> Health:
        """Ready unless a step takes very long."""
        silence_s = time.monotonic() - self._stepped_at
        is_late = silence_s > SILENCE_S
        reason = f"The engine has not ended a step for {silence_s:.0f} s." if is_late else None
        return Health(alive=True, ready=not is_late, reason=reason)
