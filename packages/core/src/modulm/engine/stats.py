"""Statistics: counted where things happen, handed out as one message. Knows no reader.

The structs stand in `types.py`, because they cross to whoever feeds the stat loggers.
"""

import time
from collections import deque

from modulm.engine.request import Sequence
from modulm.types import (
    EngineStats,
    FinishedRequestStats,
    FinishReason,
    IterationStats,
    PrefixCacheStats,
    PromptTokenStats,
    Request,
    SchedulerStats,
    SpecDecodingStats,
)

_Fanout = tuple[int, int]
"""Completions of a client request that have not ended, and the tokens of the longest that has."""
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
        self._ended: deque[tuple[int, int]] = deque(maxlen=_MOST_KEPT)
        self._fanouts: dict[str, _Fanout] = {}
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._prefix = PrefixCacheStats()
        self._prompt_tokens = PromptTokenStats()
        self._drafts: SpecDecodingStats | None = None
        self._num_generation_tokens = 0
        self._num_preempted = 0
        self._finished.clear()
        self._first_latencies.clear()
        self._token_latencies.clear()
        self._ended.clear()

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

    def prompt_tokens(self, sequence: Sequence, end: int, *, cached: bool) -> None:
        """A sequence's prompt has come as far as `end`, from the cache or by computing. What came before counts not."""
        count = min(end, sequence.num_prompt) - sequence.num_prompt_counted
        if count <= 0:
            return
        sequence.num_prompt_counted += count
        if cached:
            self._prompt_tokens.local_cache_hit += count
        else:
            self._prompt_tokens.computed += count

    def drafts(self, num_drafted: int, num_held: int) -> None:
        """A speculator's draft was verified, and its first `num_held` tokens held."""
        stats = self._drafts = self._drafts or SpecDecodingStats()
        stats.num_drafts += 1
        stats.num_draft_tokens += num_drafted
        stats.num_accepted_tokens += num_held
        by_position = stats.num_accepted_tokens_per_pos
        by_position.extend([0] * (num_drafted - len(by_position)))
        for position in range(num_held):
            by_position[position] += 1

    def tokens(self, sequence: Sequence, count: int, now: float) -> None:
        """A sequence got `count` new tokens."""
        self._num_generation_tokens += count
        times = sequence.times
        if times.first_token:
            self._token_latencies.append(now - times.last_token)
        else:
            times.first_token = now
            self._first_latencies.append(now - times.arrived)
        times.last_token = now

    def finished(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """A sequence ended."""
        times, request = sequence.times, sequence.request
        num_tokens = len(sequence.token_ids) - sequence.num_prompt
        decode_time = times.last_token - times.first_token
        self._finished.append(
            FinishedRequestStats(
                finish_reason=reason,
                request_id=sequence.request_id,
                arrival_time=request.arrival_time,
                e2e_latency=now - times.arrived,
                first_token_latency=times.first_token - times.arrived if times.first_token else 0.0,
                num_prompt_tokens=sequence.num_prompt,
                num_generation_tokens=num_tokens,
                num_cached_tokens=sequence.num_cached_tokens,
                num_preemptions=sequence.num_preemptions,
                max_tokens_param=request.max_tokens,
                queued_time=(times.scheduled or now) - times.queued,
                prefill_time=times.first_token - times.scheduled if times.first_token else 0.0,
                decode_time=decode_time,
                inference_time=times.last_token - times.scheduled if times.first_token else 0.0,
                mean_time_per_output_token=decode_time / (num_tokens - 1) if num_tokens > 1 else 0.0,
                trace_headers=request.trace_headers,
                params=request.params if request.trace_headers is not None else None,
            )
        )
        self._completed(request, num_tokens)

    def _completed(self, request: Request, num_tokens: int) -> None:
        """One of a client request's completions ended; the last one tells of them all."""
        key, n = request.fanout_salt, request.params.n
        if key is None:
            self._ended.append((n, num_tokens))
            return
        num_left, longest = self._fanouts.pop(key, (n, 0))
        longest = max(longest, num_tokens)
        if num_left > 1:
            self._fanouts[key] = (num_left - 1, longest)
        else:
            self._ended.append((n, longest))

    def report(self, *, num_running: int, num_waiting: int, kv_cache_usage: float) -> EngineStats:
        """Return everything since the last report."""
        stats = EngineStats(
            scheduler=SchedulerStats(
                num_running_reqs=num_running,
                num_waiting_reqs=num_waiting,
                step_counter=self.num_steps,
                kv_cache_usage=kv_cache_usage,
                prefix_cache_stats=self._prefix,
                spec_decoding_stats=self._drafts,
            ),
            iteration=IterationStats(
                iteration_timestamp=time.time(),
                prompt_token_stats=self._prompt_tokens,
                num_generation_tokens=self._num_generation_tokens,
                num_preempted_reqs=self._num_preempted,
                finished_requests=list(self._finished),
                time_to_first_tokens_iter=list(self._first_latencies),
                inter_token_latencies_iter=list(self._token_latencies),
                n_params_iter=[n for n, _ in self._ended],
                max_num_generation_tokens_iter=[longest for _, longest in self._ended],
            ),
        )
        self._start_afresh()
        return stats
