"""Counts requests by how they ended, and serves all numbers of this package on port MY_METRICS_PORT."""

import functools
import os

import prometheus_client
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

LABELS = ["model", "engine"]
REQUESTS = prometheus_client.Counter("my_requests", "Requests that ended.", [*LABELS, "reason"])
WAITING = prometheus_client.Gauge("my_waiting", "Requests that wait.", LABELS)


class RequestLogger(StatLoggerBase):
    """In today's style."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.labels = (vllm_config.model_config.served_model_name, str(engine_index))

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        """Called after every step."""
        if scheduler_stats is not None:
            WAITING.labels(*self.labels).set(scheduler_stats.num_waiting_reqs)
        if iteration_stats is not None:
            for request in iteration_stats.finished_requests:
                REQUESTS.labels(*self.labels, str(request.finish_reason)).inc()

    def log_engine_initialized(self) -> None:
        """Called once, when the engine is ready."""
        if port := os.environ.get("MY_METRICS_PORT"):
            serve(int(port))


@functools.cache
def serve(port: int) -> None:
    """Start the server, once for all engines."""
    prometheus_client.start_http_server(port, addr="127.0.0.1")
