"""The root of worker classes. What runs here derives from `cpu_worker.CPUWorker` or `gpu_worker.Worker`."""

from typing import Any

from vllm.config import VllmConfig


class WorkerBase:
    """Keeps what it is made with; every section of the configuration is an attribute."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.cache_config = vllm_config.cache_config
        self.scheduler_config = vllm_config.scheduler_config
        self.parallel_config = vllm_config.parallel_config
        self.load_config = vllm_config.load_config
        self.device_config = vllm_config.device_config
        self.compilation_config = vllm_config.compilation_config
        self.local_rank = local_rank
        self.rank = rank
        self.distributed_init_method = distributed_init_method
        self.is_driver_worker = is_driver_worker
        self.device: Any = None

    def init_device(self) -> None:
        """Set the device up; called once, first."""
        raise NotImplementedError

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Called once, after `init_device`."""
        raise NotImplementedError

    def compile_or_warm_up_model(self) -> Any:
        """Called once, before the first step."""
        raise NotImplementedError

    def execute_model(self, scheduler_output: Any) -> Any:
        """Run one step."""
        raise NotImplementedError

    def check_health(self) -> None:
        """Raise when the worker is not well."""
        return

    def shutdown(self) -> None:
        """Let go of everything."""
        return
