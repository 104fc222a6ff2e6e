"""The worker class that a platform names (`parallel_config.worker_cls`), around modulm's own worker.

It gets the steps: a class that derives from `CPUWorker` or `gpu_worker.Worker` and calls `super()` runs, with what it
does before and after. modulm has loaded the model and sized the KV cache by then, so a class that has its own idea of
those is refused. Executors are how modulm lets somebody in between: `executor_for` registers one for the class.
"""

import functools
from typing import Any, ClassVar, cast

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.engine_worker import EngineWorker

from modulm.errors import ConfigError, Incompatible
from modulm.interfaces.executor import Executor
from modulm.plugins import refs
from modulm.plugins.registry import registry
from modulm.types import KVLayout, Plan, StepResult

_FAMILY = "modulm.executors"
_NOT_ASKED = (
    *("get_kv_cache_spec", "get_supported_kv_cache_layouts", "set_kv_cache_layout", "determine_available_memory"),
    *("initialize_cache", "initialize_from_config", "get_cache_block_size_bytes", "sample_tokens", "get_model"),
    *("execute_dummy_batch", "take_draft_token_ids"),
)
"""What vLLM's engine asks of a worker and modulm's decides or does itself."""


def executor_for(path: Any, vllm_config: VllmConfig) -> str:
    """Register an executor whose worker is the class at `path`, and return its name. Raises `ConfigError`."""
    if not isinstance(path, str) or path.count(".") < 1:
        raise ConfigError(
            f"worker_cls={path!r} is refused: it must be a class path, 'module.Class', as a string. Correct the "
            "platform's check_and_update_config."
        )
    executor = _executor(path)
    executor.vllm_config = vllm_config
    registry(_FAMILY).register(path, executor, override=path in registry(_FAMILY))
    return path


@functools.cache
def _executor(path: str) -> type["WorkerClassExecutor"]:
    return cast(type[WorkerClassExecutor], type("WorkerClassExecutor", (WorkerClassExecutor,), {"path": path}))


class WorkerClassExecutor(Executor):
    """Runs steps through a plugin's worker; made for one class path."""

    path: ClassVar[str]
    vllm_config: ClassVar[VllmConfig]

    def __init__(self, worker: Any) -> None:
        asked = f"Worker class {self.path!r}"
        worker_class = refs.resolve(self.path, asked)
        _check(asked, worker_class)
        with set_current_vllm_config(self.vllm_config):
            made: EngineWorker = worker_class(
                vllm_config=self.vllm_config,
                local_rank=0,
                rank=0,
                distributed_init_method="",
                is_driver_worker=True,
            )
            made.serve(worker)
            made.init_device()
            made.load_model()
            made.compile_or_warm_up_model()
        self._worker = worker
        self._steps = registry(_FAMILY).get("inprocess")(_Steps(asked, made, worker))

    def kv_layout(self) -> KVLayout:
        """See `Executor`."""
        return cast(KVLayout, self._worker.kv_layout())

    def execute(self, plan: Plan) -> StepResult:
        """See `Executor`."""
        return cast(StepResult, self._steps.execute(plan))

    def shutdown(self) -> None:
        """See `Executor`."""
        self._steps.shutdown()


class _Steps:
    """A plugin's worker in the form of modulm's."""

    def __init__(self, asked: str, made: EngineWorker, worker: Any) -> None:
        self._asked = asked
        self._made = made
        self._worker = worker

    def execute(self, plan: Plan) -> StepResult:
        result = self._made.execute_model(SchedulerOutput.of(plan))
        if not isinstance(result, StepResult):
            raise Incompatible(
                f"{self._asked} answers {type(result).__name__} to execute_model, but must return what "
                "super().execute_model(scheduler_output) returned."
            )
        return result

    def shutdown(self) -> None:
        try:
            self._made.shutdown()
        finally:
            self._worker.shutdown()


def _check(asked: str, worker_class: Any) -> None:
    bases = "vllm.v1.worker.cpu_worker.CPUWorker or vllm.v1.worker.gpu_worker.Worker"
    if not (isinstance(worker_class, type) and issubclass(worker_class, EngineWorker)):
        raise Incompatible(
            f"{asked} does not derive from {bases}. modulm runs the model in a worker of its own, which those stand "
            "for: a worker with a model runner of its own cannot run here."
        )
    own = [each for each in worker_class.__mro__ if not each.__module__.startswith("vllm.")]
    unasked = [name for name in _NOT_ASKED if any(name in vars(each) for each in own)]
    if unasked:
        raise Incompatible(
            f"{asked} defines {', '.join(unasked)}, which modulm would never call: it loads the model, sizes the KV "
            "cache and samples itself. A worker class may define init_device, load_model, compile_or_warm_up_model, "
            "execute_model, check_health and shutdown, and must call super() in each."
        )
