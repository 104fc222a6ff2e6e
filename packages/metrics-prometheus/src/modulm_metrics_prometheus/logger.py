"""The stat logger: takes in statistics, and serves them at /metrics in Prometheus' formats.

The registry is the logger's own, so several engines may live in one process. What is exported stands in
`catalogue.py`; how a scrape is answered, in `exposition.py`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from modulm.interfaces.metrics import AggregateStatLoggerBase, LoggedConfig
from modulm.interfaces.settings import plugin_settings
from modulm.types import (
    FinishedRequestStats,
    IterationStats,
    PromptTokenStats,
    SchedulerStats,
    SpecDecodingStats,
)
from modulm_metrics_prometheus import catalogue
from modulm_metrics_prometheus.exposition import PluginLoads, cache_info, route

_OF_A_REQUEST = {
    "vllm:e2e_request_latency_seconds": "e2e_latency",
    "vllm:request_queue_time_seconds": "queued_time",
    "vllm:request_inference_time_seconds": "inference_time",
    "vllm:request_prefill_time_seconds": "prefill_time",
    "vllm:request_decode_time_seconds": "decode_time",
    "vllm:request_time_per_output_token_seconds": "mean_time_per_output_token",
    "vllm:request_num_preemptions": "num_preemptions",
    "vllm:request_prompt_tokens": "num_prompt_tokens",
    "vllm:request_generation_tokens": "num_generation_tokens",
    "vllm:request_params_max_tokens": "max_tokens_param",
}
"""Histograms of requests that have ended, each with the field that it is of."""
_OF_A_STEP = {
    "vllm:time_to_first_token_seconds": "time_to_first_tokens_iter",
    "vllm:inter_token_latency_seconds": "inter_token_latencies_iter",
    "vllm:request_params_n": "n_params_iter",
    "vllm:request_max_num_generation_tokens": "max_num_generation_tokens_iter",
}
"""Histograms with the lists that a step brings values in."""


class PrometheusStatLogger(AggregateStatLoggerBase):
    """Exports what all engines report.

    Attributes:
        registry: Holds the metrics; scrape it with `prometheus_client.generate_latest`.
    """

    def __init__(self, vllm_config: LoggedConfig, engine_indexes: list[int]) -> None:
        self.registry = CollectorRegistry()
        self._config = vllm_config
        self._model_name = vllm_config.model_config.served_model_name
        buckets = plugin_settings("prometheus", catalogue.Buckets)
        families = catalogue.make(self.registry, vllm_config.model_config.max_model_len, buckets)
        self._engines = {index: _Engine(self._model_name, index, families) for index in engine_indexes}
        rejections = families["vllm:admission_rejections"]
        self._rejections = {reason: rejections.labels(self._model_name, reason) for reason in catalogue.REJECTIONS}
        self._draft_families: catalogue.Families = {}
        self.registry.register(PluginLoads(vllm_config.plugins))
        self.record_sleep_state(0, 0)

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Take in one report of an engine."""
        engine = self._engines[engine_idx]
        if scheduler_stats is not None:
            engine.scheduler(scheduler_stats)
            if scheduler_stats.spec_decoding_stats is not None:
                engine.drafts(scheduler_stats.spec_decoding_stats, self._drafts())
        if iteration_stats is not None:
            engine.iteration(iteration_stats)

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Set the state of all engines: 1 and a level while they sleep, else 0."""
        state = "awake" if not is_awake else catalogue.SLEEP_STATES[level]
        for engine in self._engines.values():
            for each in catalogue.SLEEP_STATES:
                engine.value("vllm:engine_sleep_state", each).set(each == state)

    def record_admission_rejection(self, reason: str) -> None:
        """Count a request that was turned away; limits that are not vLLM's count as "other"."""
        self._rejections[reason if reason in self._rejections else "other"].inc()

    def log_engine_initialized(self) -> None:
        """Export the KV cache's settings."""
        cache_info(self.registry, self._config.cache_config, list(self._engines))

    def routes(self) -> Sequence[Any]:
        """Return the route /metrics."""
        return [route(self.registry)]

    def _drafts(self) -> catalogue.Families:
        if not self._draft_families:
            self._draft_families = catalogue.make_counters(self.registry, catalogue.DRAFT_COUNTERS)
        return self._draft_families


class _Engine:
    """The metrics of one engine, with its labels filled in."""

    def __init__(self, model_name: str, index: int, families: catalogue.Families) -> None:
        self._labels = (model_name, str(index))
        self._values: dict[tuple[str, str], Any] = {}
        for metric in (*catalogue.GAUGES, *catalogue.COUNTERS, *catalogue.HISTOGRAMS):
            if metric.scope == catalogue.SCOPE:
                for value in metric.values or ("",):
                    labels = (*self._labels, value) if metric.values else self._labels
                    self._values[metric.name, value] = families[metric.name].labels(*labels)

    def value(self, name: str, label: str = "") -> Any:
        """Return the gauge, counter or histogram itself; `label` is the value of the label that it has of its own."""
        return self._values[name, label]

    def scheduler(self, stats: SchedulerStats) -> None:
        """Take in how things stand."""
        capacity, deferred = stats.num_waiting_reqs, stats.num_skipped_waiting_reqs
        self.value("vllm:num_requests_running").set(stats.num_running_reqs)
        self.value("vllm:num_requests_waiting").set(capacity + deferred)
        self.value("vllm:num_requests_waiting_by_reason", "capacity").set(capacity)
        self.value("vllm:num_requests_waiting_by_reason", "deferred").set(deferred)
        self.value("vllm:kv_cache_usage_perc").set(stats.kv_cache_usage)
        prefix = stats.prefix_cache_stats
        self.value("vllm:prefix_cache_queries").inc(prefix.queries)
        self.value("vllm:prefix_cache_hits").inc(prefix.hits)
        self.value("vllm:prompt_tokens_cached_by_source", "device").inc(prefix.hits)

    def drafts(self, stats: SpecDecodingStats, families: catalogue.Families) -> None:
        """Take in what became of drafts."""
        for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
            families[f"vllm:spec_decode_{name}"].labels(*self._labels).inc(getattr(stats, name))
        by_position = families["vllm:spec_decode_num_accepted_tokens_per_pos"]
        for position, count in enumerate(stats.num_accepted_tokens_per_pos):
            by_position.labels(*self._labels, str(position)).inc(count)

    def iteration(self, stats: IterationStats) -> None:
        """Take in what a step did."""
        self._prompt_tokens(stats.prompt_token_stats)
        self.value("vllm:num_preemptions").inc(stats.num_preempted_reqs)
        self.value("vllm:generation_tokens").inc(stats.num_generation_tokens)
        num_tokens = stats.prompt_token_stats.computed + stats.num_generation_tokens
        if num_tokens:
            self.value("vllm:iteration_tokens_total").observe(num_tokens)
        for name, field in _OF_A_STEP.items():
            _observe(self.value(name), getattr(stats, field))
        for ended in stats.finished_requests:
            self._finished(ended)

    def _prompt_tokens(self, stats: PromptTokenStats) -> None:
        self.value("vllm:prompt_tokens").inc(stats.total)
        self.value("vllm:prompt_tokens_cached").inc(stats.cached_tokens)
        sources = (stats.computed, stats.local_cache_hit, stats.external_kv_transfer)
        for source, count in zip(("local_compute", "local_cache_hit", "external_kv_transfer"), sources, strict=True):
            self.value("vllm:prompt_tokens_by_source", source).inc(count)

    def _finished(self, ended: FinishedRequestStats) -> None:
        self.value("vllm:request_success", ended.finish_reason).inc()
        self.value("vllm:request_prefill_kv_computed_tokens").observe(ended.num_prompt_tokens - ended.num_cached_tokens)
        for name, field in _OF_A_REQUEST.items():
            self.value(name).observe(getattr(ended, field))


def _observe(histogram: Any, values: Iterable[float]) -> None:
    for value in values:
        histogram.observe(value)
