"""Statistics under vLLM's names: they are modulm's structs, which have vLLM's fields as far as modulm counts them."""

from dataclasses import dataclass

from modulm.types import (
    FinishedRequestStats,
    IterationStats,
    PrefixCacheStats,
    PromptTokenStats,
    SchedulerStats,
    SpecDecodingStats,
)

__all__ = [
    "FinishedRequestStats",
    "IterationStats",
    "MultiModalCacheStats",
    "PrefixCacheStats",
    "PromptTokenStats",
    "SchedulerStats",
    "SpecDecodingStats",
]


@dataclass
class MultiModalCacheStats:
    """Lookups in the cache of images; modulm has none, so loggers always get None in its place."""

    reset: bool = False
    requests: int = 0
    queries: int = 0
    hits: int = 0
