"""Executors in this room: the one that runs a worker in the engine's own process and thread."""

from modulm.errors import EngineError
from modulm.interfaces.executor import Executor
from modulm.types import KVLayout, Plan, StepResult
from modulm.worker.worker import Worker


class InProcessExecutor(Executor):
    """Calls the worker directly."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def kv_layout(self) -> KVLayout:
        """See `Executor`."""
        return self._worker.kv_layout()

    def execute(self, plan: Plan) -> StepResult:
        """See `Executor`."""
        try:
            return self._worker.execute(plan)
        except EngineError:
            raise
        except (Exception, SystemExit) as error:  # plugins compute here
            raise EngineError(
                f"A step of {len(plan.scheduled)} sequences failed in the worker: {type(error).__name__}: {error}"
            ) from error

    def shutdown(self) -> None:
        """See `Executor`."""
        self._worker.shutdown()
