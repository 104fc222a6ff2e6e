"""Runs the worker in the engine's process, and prints how long it took over all steps."""

import time

from modulm.errors import EngineError
from modulm.interfaces.executor import Executor
from modulm.types import KVLayout, Plan, StepResult


class TimedExecutor(Executor):
    """Chosen by `executor="NAME"`."""

    def __init__(self, worker) -> None:
        self.worker, self.seconds, self.steps = worker, 0.0, 0

    def kv_layout(self) -> KVLayout:
        return self.worker.kv_layout()

    def execute(self, plan: Plan) -> StepResult:
        started = time.perf_counter()
        try:
            return self.worker.execute(plan)
        except EngineError:
            raise
        except Exception as error:  # the engine ends this step's requests with it, and goes on
            raise EngineError(f"A step failed: {type(error).__name__}: {error}") from error
        finally:
            self.seconds, self.steps = self.seconds + time.perf_counter() - started, self.steps + 1

    def shutdown(self) -> None:
        if self.steps:
            print(f"{self.steps} steps took {self.seconds:.3f} s")
        self.steps = 0
        self.worker.shutdown()
