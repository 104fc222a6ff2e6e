"""Conformance of executors (`modulm.interfaces.executor`): the engine's only view of workers.

The worker is a fake: no tensors, no model. What counts is what comes back, in which order, and what failures become.
"""

from typing import Any

import pytest

from modulm.errors import EngineError
from modulm.interfaces.executor import Executor
from modulm.sampling_params import SamplingParams
from modulm.types import NewSequence, Plan, Request, Scheduled
from modulm_testkit.fakes import FakeWorker
from modulm_testkit.suite import Conformance, ask_for


class ExecutorConformance(Conformance):
    """Give `executor_class`: the class that the entry point of `modulm.executors` names, called with a worker."""

    @pytest.fixture(name="executor_class")
    def _executor_class(self) -> Any:
        """Return the class."""
        ask_for("executor_class", "MyExecutor")

    @pytest.fixture
    def worker(self) -> FakeWorker:
        """The worker behind the executor."""
        return FakeWorker()

    @pytest.fixture
    def executor(self, executor_class: Any, worker: FakeWorker) -> Any:
        """The executor, made as the engine makes it; shut down after the test."""
        made: Executor = executor_class(worker)
        yield made
        made.shutdown()

    def test_knows_the_cache(self, executor: Executor, worker: FakeWorker) -> None:
        """`kv_layout` is the worker's: the scheduler hands out exactly those blocks."""
        assert executor.kv_layout() == worker.kv_layout()

    def test_answers_in_the_order_of_the_plan(self, executor: Executor) -> None:
        """A step has one answer for every scheduled sequence, in the plan's order, with its tokens."""
        result = executor.execute(plan("c", "a", "b"))
        assert [(one.request_id, one.token_ids) for one in result.sampled] == [("c", [3]), ("a", [3]), ("b", [3])]

    def test_hands_on_the_whole_plan(self, executor: Executor, worker: FakeWorker) -> None:
        """New sequences and those to forget reach the worker, also when nothing is scheduled."""
        executor.execute(plan("a"))
        executor.execute(Plan(forget=["a", "never heard of"]))
        assert [[new.request.request_id for new in one.new] for one in worker.plans] == [["a"], []]
        assert worker.plans[1].forget == ["a", "never heard of"]

    def test_failures_are_engine_errors(self, executor: Executor, worker: FakeWorker) -> None:
        """Whatever a step raises becomes an `EngineError` with the cause chained: the engine goes on."""
        worker.failure = ZeroDivisionError("a bug in a kernel")
        with pytest.raises(EngineError, match="a bug in a kernel") as caught:
            executor.execute(plan("a"))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_engine_errors_stay_what_they_are(self, executor: Executor, worker: FakeWorker) -> None:
        """A worker's own `EngineError` comes through as it is, with what it says of trying again."""
        worker.failure = EngineError("no memory", retry_after_s=2.0)
        with pytest.raises(EngineError, match="^no memory$") as caught:
            executor.execute(plan("a"))
        assert caught.value.retry_after_s == 2.0

    def test_goes_on_after_a_failure(self, executor: Executor, worker: FakeWorker) -> None:
        """A step after a failed one runs, and is answered by its own result."""
        worker.failure = RuntimeError("once")
        with pytest.raises(EngineError):
            executor.execute(plan("a"))
        worker.failure = None
        assert [one.request_id for one in executor.execute(plan("b")).sampled] == ["b"]

    def test_shuts_down_twice(self, executor: Executor, worker: FakeWorker) -> None:
        """`shutdown` frees the worker and may be called again."""
        executor.shutdown()
        executor.shutdown()
        assert worker.shutdowns >= 1


def plan(*request_ids: str) -> Plan:
    """Return a plan that begins sequences of three tokens each."""
    sequences = [
        Request(request_id=one, prompt_token_ids=[7, 8, 9], params=SamplingParams(), max_tokens=5)
        for one in request_ids
    ]
    return Plan(
        new=[NewSequence(request=one, token_ids=[7, 8, 9]) for one in sequences],
        scheduled=[
            Scheduled(request_id=one.request_id, start=0, num_tokens=3, new_block_ids=[[1 + i]], samples=True)
            for i, one in enumerate(sequences)
        ],
    )
