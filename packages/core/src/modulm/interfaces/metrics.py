"""Stat loggers (group `vllm.stat_logger_plugins`): told after every engine step how things stand.

An entry point of the group is the class itself. Loaded in the front end of a server only, never offline.
"""

from abc import ABC, abstractmethod
from typing import Any


class StatLoggerBase(ABC):
    """One logger for one engine; constructed as `Class(config, engine_index)`."""

    @abstractmethod
    def __init__(self, config: Any, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Take in one step's statistics; must be quick and must not raise."""

    @abstractmethod
    def log_engine_initialized(self) -> None:
        """Called once, when the engine is ready."""

    def log(self) -> None:
        """Write out what was gathered; called at intervals."""
