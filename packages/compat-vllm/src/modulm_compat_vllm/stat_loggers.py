"""Stat loggers in older styles as loggers of today's: `log(stats)`, and `record` with fewer arguments.

A class is changed once, while it is defined: its own `record` or `log` is called from the one that modulm calls. Knows
nothing of who calls; that is `modulm.frontend.stat_feed`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from modulm.types import FinishedRequestStats, IterationStats, PrefixCacheStats, SchedulerStats

if TYPE_CHECKING:
    from vllm.engine.metrics_types import Stats

_ORDER = ("scheduler_stats", "iteration_stats", "mm_cache_stats", "engine_idx")
"""What `record` is called with."""


def modernise(logger_class: type) -> None:
    """Let methods that `logger_class` defines in an older style be called in today's."""
    defined = vars(logger_class)
    if inspect.isfunction(record := defined.get("record")):
        _put(logger_class, "record", _of_today(record))
    log = defined.get("log")
    needed = _required(log) if inspect.isfunction(log) else []
    if len(needed) > 2:
        raise TypeError(
            f"{logger_class.__qualname__}.log needs {', '.join(needed)}. A stat logger's log takes nothing, or one "
            "Stats, or scheduler_stats and iteration_stats: correct its signature."
        )
    if needed:
        assert inspect.isfunction(log)
        _record_by_log(logger_class, log)


def _of_today(told: Callable[..., None]) -> Callable[..., None]:
    """Return a `record` that tells `told` as much as it takes: all, the first two, or one `Stats` made of them."""
    parameters = list(inspect.signature(told).parameters.values())[1:]
    names = [each.name for each in parameters]
    if any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in parameters) or set(names) >= set(_ORDER):
        return told
    by_name = [name for name in _ORDER[2:] if name in names]
    takes_stats = len(names) - len(by_name) == 1

    @functools.wraps(told)
    def record(
        self: Any,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        given = {"mm_cache_stats": mm_cache_stats, "engine_idx": engine_idx}
        more = {name: given[name] for name in by_name}
        if not takes_stats:
            told(self, scheduler_stats, iteration_stats, **more)
        elif scheduler_stats is not None and iteration_stats is not None:
            told(self, stats_of(scheduler_stats, iteration_stats), **more)

    del record.__wrapped__  # its signature is the one above
    return record


def _record_by_log(logger_class: type, log: Callable[..., None]) -> None:
    """`log` was what `record` is now: it gets every step, and nothing is left to do every ten seconds."""

    @functools.wraps(log)
    def nothing_unless_told(self: Any, *stats: Any) -> None:
        if stats:  # a derived class calls super().log(stats)
            log(self, *stats)

    del nothing_unless_told.__wrapped__
    if "record" not in vars(logger_class):
        _put(logger_class, "record", _of_today(log))
    _put(logger_class, "log", nothing_unless_told)
    if getattr(logger_class.log_engine_initialized, "__isabstractmethod__", False):  # type: ignore[attr-defined]
        _put(logger_class, "log_engine_initialized", lambda self: None)


def _put(logger_class: type, name: str, function: Callable[..., Any]) -> None:
    function.__name__, function.__qualname__ = name, f"{logger_class.__qualname__}.{name}"
    setattr(logger_class, name, function)


def _required(function: Callable[..., Any]) -> list[str]:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in parameters if each.kind in kinds and each.default is each.empty]


def stats_of(scheduler: SchedulerStats, iteration: IterationStats) -> "Stats":
    """Return a step in the older style's words."""
    from vllm.engine.metrics_types import Stats

    ended = iteration.finished_requests
    return Stats(
        now=iteration.iteration_timestamp,
        num_running_sys=scheduler.num_running_reqs,
        num_waiting_sys=scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs,
        gpu_cache_usage_sys=scheduler.kv_cache_usage,
        gpu_prefix_cache_hit_rate=_hit_rate(scheduler.prefix_cache_stats),
        num_prompt_tokens_iter=iteration.num_prompt_tokens,
        num_generation_tokens_iter=iteration.num_generation_tokens,
        num_tokens_iter=iteration.num_prompt_tokens + iteration.num_generation_tokens,
        num_preemption_iter=iteration.num_preempted_reqs,
        time_to_first_tokens_iter=iteration.time_to_first_tokens_iter,
        time_per_output_tokens_iter=iteration.inter_token_latencies_iter,
        n_requests=iteration.n_params_iter,
        max_num_generation_tokens_requests=iteration.max_num_generation_tokens_iter,
        **_of_requests(ended),
    )


def _of_requests(ended: list[FinishedRequestStats]) -> dict[str, list[Any]]:
    return {
        "time_e2e_requests": [each.e2e_latency for each in ended],
        "time_queue_requests": [each.queued_time for each in ended],
        "time_inference_requests": [each.inference_time for each in ended],
        "time_prefill_requests": [each.prefill_time for each in ended],
        "time_decode_requests": [each.decode_time for each in ended],
        "num_prompt_tokens_requests": [each.num_prompt_tokens for each in ended],
        "num_generation_tokens_requests": [each.num_generation_tokens for each in ended],
        "max_tokens_requests": [each.max_tokens_param for each in ended],
        "finished_reason_requests": [each.finish_reason for each in ended],
    }


def _hit_rate(prefix: PrefixCacheStats) -> float:
    """Of the lookups since the last report; vLLM's was of the last thousand."""
    return prefix.hits / prefix.queries if prefix.queries else 0.0
