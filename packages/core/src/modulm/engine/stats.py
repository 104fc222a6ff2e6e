"""Statistics: counted where things happen, handed out as one message. Knows no reader.

The structs stand in `types.py`, because they cross to whoever feeds the stat loggers.
"""

from collections import deque

from modulm.engine.request import Sequence
from modulm.types import (
    EngineStats,
    FinishedRequestStats,
    FinishReason,
    IterationStats,
    PrefixCacheStats,
    SchedulerStats,
)

_MOST_KEPT = 8192
"""Entries per list when nobody asks for reports; then only the newest stay."""


class Recorder:
    """Gathers what happens until the next report.

    Attributes:
        num_steps: Steps since the start.
        num_preemptions: Preemptions since the start.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_preemptions = 0
        self._finished: deque[FinishedRequestStats] = deque(maxlen=_MOST_KEPT)
        self._first_latencies: deque[float] = deque(maxlen=_MOST_KEPT)
        self._token_latencies: deque[float] = deque(maxlen=_MOST_KEPT)
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._prefix = PrefixCacheStats()
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._num_preempted = 0
        self._finished.clear()
        self._first_latencies.clear()
        self._token_latencies.clear()

    def lookup(self, num_tokens: int, num_hit: int, *, resumed: bool) -> None:
        """A sequence was looked up in the prefix cache."""
        prefix = self._prefix
        if resumed:
            prefix.preempted_requests += 1
            prefix.preempted_queries += num_tokens
            prefix.preempted_hits += num_hit
        else:
            prefix.requests += 1
            prefix.queries += num_tokens
            prefix.hits += num_hit

    def preempted(self) -> None:
        """A sequence lost its blocks."""
        self.num_preemptions += 1
        self._num_preempted += 1

    def prompt_tokens(self, count: int) -> None:
        """So many prompt tokens were computed."""
        self._num_prompt_tokens += count

    def tokens(self, sequence: Sequence, count: int, now: float) -> None:
        """A sequence got `count` new tokens."""
        self._num_generation_tokens += count
        times = sequence.times
        if times.first_token:
            self._token_latencies.append(now - times.last_token)
        else:
            times.first_token = now
            self._first_latencies.append(now - times.queued)
        times.last_token = now

    def finished(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """A sequence ended."""
        times = sequence.times
        self._finished.append(
            FinishedRequestStats(
                finish_reason=reason,
                request_id=sequence.request_id,
                e2e_latency=now - times.queued,
                num_prompt_tokens=sequence.num_prompt,
                num_generation_tokens=len(sequence.token_ids) - sequence.num_prompt,
                num_cached_tokens=sequence.num_cached_tokens,
                num_preemptions=sequence.num_preemptions,
                max_tokens_param=sequence.request.max_tokens,
                queued_time=(times.scheduled or now) - times.queued,
                prefill_time=times.first_token - times.scheduled if times.first_token else 0.0,
                decode_time=times.last_token - times.first_token,
            )
        )

    def report(self, *, num_running: int, num_waiting: int, kv_cache_usage: float) -> EngineStats:
        """Return everything since the last report."""
        stats = EngineStats(
            scheduler=SchedulerStats(
                num_running_reqs=num_running,
                num_waiting_reqs=num_waiting,
                step_counter=self.num_steps,
                kv_cache_usage=kv_cache_usage,
                prefix_cache_stats=self._prefix,
            ),
            iteration=IterationStats(
                num_prompt_tokens=self._num_prompt_tokens,
                num_generation_tokens=self._num_generation_tokens,
                num_preempted_reqs=self._num_preempted,
                finished_requests=list(self._finished),
                time_to_first_tokens_iter=list(self._first_latencies),
                inter_token_latencies_iter=list(self._token_latencies),
            ),
        )
        self._start_afresh()
        return stats
