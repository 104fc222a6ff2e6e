"""What the frontend knows of the engine: six verbs. Knows neither where it runs nor how messages get there."""

from typing import Protocol

from modulm.outputs import Health
from modulm.types import EngineStats, FinishReason, Request, StepOutput

TICK_S = 0.1
"""How long a `WatchedClient` waits in `poll` for something to tell."""
SILENCE_S = 30.0
"""An engine that says nothing for so long is not ready."""


class EngineVerbs(Protocol):
    """What an engine and a client of it have in common. `submit` and `abort` from any thread, the rest from one."""

    def submit(self, request: Request) -> None:
        """Hand over a request; exactly one output with a `finish_reason` will follow for it."""

    def abort(self, request_ids: list[str], reason: FinishReason = "abort") -> None:
        """Ask to end requests, for a reason that statistics tell; ids that are unknown or ended are passed over."""

    def has_work(self) -> bool:
        """Whether outputs are to be expected."""

    def stats(self) -> EngineStats:
        """Return what happened since the last call, and how things stand; for one reader."""

    def shutdown(self) -> None:
        """End the engine; may be called twice. Requests that have not ended still get a last output, "abort"."""


class EngineClient(EngineVerbs, Protocol):
    """One engine, here or elsewhere."""

    def poll(self) -> list[StepOutput]:
        """Return the outputs since the last call; an engine in this process runs one step for it if it has work."""


class WatchedClient(EngineClient, Protocol):
    """An engine that runs whether or not anybody calls: `poll` waits a moment where there is nothing to tell.

    Attributes:
        report: What came with the last poll, where reports of every step were asked for; else None.
    """

    report: EngineStats | None

    def health(self) -> Health:
        """Say how the engine is; from any thread, without asking it."""
