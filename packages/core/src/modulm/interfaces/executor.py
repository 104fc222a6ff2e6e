"""Executors (family `modulm.executors`): run plans on one or many workers. The engine's only view of devices.

Chosen by `EngineConfig.executor`. `launch.py` makes one per engine, in the engine's process, as `Class(worker)` with a
worker whose model is loaded; everything else is called by `engine/loop.py`, from its thread.
"""

from abc import ABC, abstractmethod

from modulm.types import KVLayout, Plan, StepResult


class Executor(ABC):
    """What the engine calls, from one thread."""

    @abstractmethod
    def kv_layout(self) -> KVLayout:
        """Return block size, number of blocks and KV groups; known once the model is loaded."""

    @abstractmethod
    def execute(self, plan: Plan) -> StepResult:
        """Run one step. Raises `EngineError` when the step as a whole failed; no sequence of it advanced then."""

    @abstractmethod
    def shutdown(self) -> None:
        """Free devices and processes; may be called twice."""
