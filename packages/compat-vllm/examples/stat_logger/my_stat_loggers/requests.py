"""Counts requests by how they ended, and serves all numbers of this package on port MY_METRICS_PORT."""

import os

import prometheus_client
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats


class RequestLogger(StatLoggerBase):
    """In today's style."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        labels = {"model": vllm_config.model_config.served_model_name, "engine": str(engine_index)}
        requests = prometheus_client.Counter("my_requests", "Requests that ended.", [*labels, "reason"])
        waiting = prometheus_client.Gauge("my_waiting", "Requests that wait.", [*labels])
        self.requests = lambda reason: requests.labels(*labels.values(), reason)
        self.waiting = waiting.labels(*labels.values())

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        """Called after every step."""
        if scheduler_stats is not None:
            self.waiting.set(scheduler_stats.num_waiting_reqs)
        if iteration_stats is not None:
            for request in iteration_stats.finished_requests:
                self.requests(str(request.finish_reason)).inc()

    def log_engine_initialized(self) -> None:
        """Called once, when the engine is ready."""
        prometheus_client.start_http_server(int(os.environ["MY_METRICS_PORT"]), addr="127.0.0.1")
