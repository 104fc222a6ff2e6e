"""An engine in the caller's own process and thread: polling is what makes it run.

Knows the engine by its shape only, so that neither room imports the other.
"""

from typing import Protocol

from modulm.transport.client import EngineVerbs
from modulm.types import StepOutput


class SteppedEngine(EngineVerbs, Protocol):
    """The shape of `engine/loop.py`'s `Engine`."""

    def step(self) -> list[StepOutput]:
        """Run one step and return what it brought, to whom."""


class InProcessClient:
    """`EngineClient` over an engine object."""

    def __init__(self, engine: SteppedEngine) -> None:
        self._engine = engine
        self.submit = engine.submit
        self.abort = engine.abort
        self.has_work = engine.has_work
        self.stats = engine.stats
        self.shutdown = engine.shutdown

    def poll(self) -> list[StepOutput]:
        """Run one step if there is work, and return its outputs."""
        return self._engine.step() if self._engine.has_work() else []
