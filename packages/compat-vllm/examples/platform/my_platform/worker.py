"""The platform's worker: counts steps and tokens around those of vLLM's own."""

from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

logger = init_logger("vllm.my_platform")


class MyWorker(CPUWorker):
    """Says what it did when it ends."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        super().__init__(vllm_config, local_rank, rank, distributed_init_method, is_driver_worker)
        self.num_steps = self.num_tokens = 0

    def init_device(self) -> None:
        """Called once."""
        super().init_device()
        logger.info("worker %d on %s, %d tokens a block", self.rank, self.device, self.cache_config.block_size)

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """Run one step."""
        self.num_steps += 1
        self.num_tokens += scheduler_output.total_num_scheduled_tokens
        return super().execute_model(scheduler_output)

    def shutdown(self) -> None:
        """Called at the end."""
        logger.info("worker ran %d steps of %d tokens", self.num_steps, self.num_tokens)
        super().shutdown()
