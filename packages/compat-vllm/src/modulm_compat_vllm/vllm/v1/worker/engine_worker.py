"""The worker that stands for modulm's own. No module of vLLM: `cpu_worker` and `gpu_worker` name it as vLLM does."""

from typing import Any

from vllm.v1.worker.worker_base import WorkerBase


class EngineWorker(WorkerBase):
    """Runs steps in modulm's worker, whose model is loaded already. A class that derives from it calls `super()`."""

    _engine_worker: Any = None

    def serve(self, engine_worker: Any) -> None:
        """Take modulm's worker; modulm calls this before anything else."""
        self._engine_worker = engine_worker

    def init_device(self) -> None:
        """Say which device it is; modulm has set it up."""
        import torch

        self.device = torch.device(self._engine_worker.describe()["device"])

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Nothing is left to do: modulm has loaded it."""

    def compile_or_warm_up_model(self) -> None:
        """Nothing is compiled."""

    def execute_model(self, scheduler_output: Any) -> Any:
        """Run one step, and return modulm's result: it must be returned as it is."""
        return self._engine_worker.execute(scheduler_output.plan)
