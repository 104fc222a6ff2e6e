"""Executors that are wrong in one way each."""

from contract import Contract

from modulm.errors import EngineError
from modulm.interfaces.executor import Executor
from modulm.types import KVLayout, Plan
from modulm_testkit.executor import ExecutorConformance


class Direct(Executor):
    """Calls the worker."""

    def __init__(self, worker):
        self.worker = worker

    def kv_layout(self):
        return self.worker.kv_layout()

    def execute(self, plan):
        try:
            return self.worker.execute(plan)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"A step failed: {error}") from error

    def shutdown(self):
        self.worker.shutdown()


executor = Contract("executor", ExecutorConformance, "executor_class", Direct)
mutant = executor.mutant


@mutant("test_knows_the_cache")
class KeepsABlock(Direct):
    """One block is kept back."""

    def kv_layout(self):
        real = self.worker.kv_layout()
        return KVLayout(block_size=real.block_size, num_blocks=real.num_blocks - 1, groups=real.groups)


@mutant("test_answers_in_the_order_of_the_plan")
class SortsAnswers(Direct):
    """Answers come in the order of ids."""

    def execute(self, plan):
        result = super().execute(plan)
        result.sampled.sort(key=lambda one: one.request_id)
        return result


@mutant("test_hands_on_the_whole_plan")
class DropsEmptyPlans(Direct):
    """A plan that schedules nothing does not reach the worker."""

    def execute(self, plan):
        return super().execute(plan) if plan.scheduled else super().execute(Plan())


@mutant("test_failures_are_engine_errors")
class ForgetsTheCause(Direct):
    """A failure has no cause."""

    def execute(self, plan):
        try:
            return self.worker.execute(plan)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"A step failed: {error}") from None


@mutant("test_engine_errors_stay_what_they_are")
class WrapsEverything(Direct):
    """An EngineError is wrapped in another."""

    def execute(self, plan):
        try:
            return self.worker.execute(plan)
        except Exception as error:
            raise EngineError(f"A step failed: {error}") from error


@mutant("test_goes_on_after_a_failure")
class StaysBroken(Direct):
    """After one failure every step fails."""

    broken = False

    def execute(self, plan):
        if self.broken:
            raise EngineError("the executor is broken")
        try:
            return super().execute(plan)
        except EngineError:
            self.broken = True
            raise


@mutant("test_shuts_down_twice")
class ShutsDownOnce(Direct):
    """The worker is never told."""

    def shutdown(self):
        """Leave it to the system."""
