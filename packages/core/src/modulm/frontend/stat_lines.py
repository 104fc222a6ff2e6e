"""The stat logger that is always there: every ten seconds one line of text, in vLLM's words; none while idle.

Knows only what `record` brings.
"""

import time
from collections import deque
from typing import Any

from modulm.interfaces.metrics import LoggedConfig, StatLoggerBase
from modulm.log import logger
from modulm.types import IterationStats, PrefixCacheStats, SchedulerStats

_log = logger("stats")
_MOST_LOOKUPS = 1000
"""The hit rate is that of so many of the newest requests."""


class StatLines(StatLoggerBase):
    """Writes to the log of `modulm.stats` at level INFO."""

    def __init__(self, vllm_config: LoggedConfig, engine_index: int = 0) -> None:
        self._engine_index = engine_index
        self._cache = vllm_config.cache_config
        self._lookups: deque[PrefixCacheStats] = deque()
        self._latest: SchedulerStats | None = None
        self._was_busy = False
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._since = time.monotonic()
        self._num_prompt_tokens = self._num_generation_tokens = self._num_preemptions = 0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Add up."""
        if iteration_stats is not None:
            self._num_prompt_tokens += iteration_stats.prompt_token_stats.computed
            self._num_generation_tokens += iteration_stats.num_generation_tokens
            self._num_preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is not None:
            self._latest = scheduler_stats
            if scheduler_stats.prefix_cache_stats.requests:
                self._lookups.append(scheduler_stats.prefix_cache_stats)
                while sum(each.requests for each in self._lookups) > _MOST_LOOKUPS and len(self._lookups) > 1:
                    self._lookups.popleft()

    def log_engine_initialized(self) -> None:
        """Say how large the KV cache is."""
        cache = self._cache
        if cache.num_gpu_blocks is not None:
            num_tokens = cache.num_gpu_blocks * cache.block_size
            _log.info("Engine %03d: KV cache of %s tokens.", self._engine_index, f"{num_tokens:,}")

    def log(self) -> None:
        """Write a line, if anything has happened since the line before the last, or ought to."""
        latest, elapsed_s = self._latest, time.monotonic() - self._since
        if latest is None:
            return
        is_busy = bool(self._num_prompt_tokens or self._num_generation_tokens)
        num_waiting = latest.num_waiting_reqs + latest.num_skipped_waiting_reqs
        if is_busy or self._was_busy or latest.num_running_reqs or num_waiting:
            _log.info("Engine %03d: %s", self._engine_index, ", ".join(self._parts(latest, num_waiting, elapsed_s)))
        self._was_busy = is_busy
        self._start_afresh()

    def _parts(self, latest: SchedulerStats, num_waiting: int, elapsed_s: float) -> list[str]:
        parts = [
            f"Avg prompt throughput: {self._num_prompt_tokens / elapsed_s:.1f} tokens/s",
            f"Avg generation throughput: {self._num_generation_tokens / elapsed_s:.1f} tokens/s",
            f"Running: {latest.num_running_reqs} reqs",
            f"Waiting: {num_waiting} reqs",
        ]
        if latest.num_skipped_waiting_reqs:
            parts.append(f"Deferred: {latest.num_skipped_waiting_reqs} reqs")
        if self._num_preemptions:
            parts.append(f"Preemptions: {self._num_preemptions}")
        parts.append(f"KV cache usage: {latest.kv_cache_usage * 100:.1f}%")
        queries = sum(each.queries for each in self._lookups)
        if queries:
            parts.append(f"Prefix cache hit rate: {sum(each.hits for each in self._lookups) / queries * 100:.1f}%")
        return parts
