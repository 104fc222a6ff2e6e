"""Reports of an engine added up, for a stat logger that is behind. In place, so that it costs what the new one holds.

Counts and lists are summed; how things stand is taken from the newest. Knows the statistics of `types.py` only.
"""

from itertools import zip_longest

import msgspec

from modulm.types import (
    EngineStats,
    IterationStats,
    PrefixCacheStats,
    PromptTokenStats,
    SchedulerStats,
    SpecDecodingStats,
)

_MOST_VALUES = 8192
"""Latencies and ended requests that a sum keeps, the first of each; more are dropped, while counts stay exact."""


def nothing() -> EngineStats:
    """Return a report of nothing, to add others to."""
    return EngineStats(
        scheduler=SchedulerStats(prefix_cache_stats=PrefixCacheStats()),
        iteration=IterationStats(prompt_token_stats=PromptTokenStats()),
    )


def add(total: EngineStats, stats: EngineStats) -> None:
    """Add a later report of the same engine to `total`, which must share nothing with it."""
    _add_scheduler(total.scheduler, stats.scheduler)
    _add_counts(total.iteration.prompt_token_stats, stats.iteration.prompt_token_stats)
    _add_counts(total.iteration, stats.iteration)
    total.iteration.iteration_timestamp = stats.iteration.iteration_timestamp


def _add_scheduler(total: SchedulerStats, stats: SchedulerStats) -> None:
    prefix, drafts = total.prefix_cache_stats, total.spec_decoding_stats
    _add_counts(prefix, stats.prefix_cache_stats)
    if stats.spec_decoding_stats is not None:
        drafts = drafts or SpecDecodingStats()
        _add_drafts(drafts, stats.spec_decoding_stats)
    for name in stats.__struct_fields__:
        setattr(total, name, getattr(stats, name))
    total.prefix_cache_stats, total.spec_decoding_stats = prefix, drafts


def _add_drafts(total: SpecDecodingStats, stats: SpecDecodingStats) -> None:
    by_position = zip_longest(total.num_accepted_tokens_per_pos, stats.num_accepted_tokens_per_pos, fillvalue=0)
    sums = [a + b for a, b in by_position]
    _add_counts(total, stats)
    total.num_accepted_tokens_per_pos = sums


def _add_counts(total: msgspec.Struct, stats: msgspec.Struct) -> None:
    """Sum fields that are whole numbers, and append to those that are lists."""
    for name in stats.__struct_fields__:
        value = getattr(stats, name)
        if isinstance(value, int):
            setattr(total, name, getattr(total, name) + value)
        elif isinstance(value, list):
            kept = getattr(total, name)
            kept += value[: _MOST_VALUES - len(kept)]
