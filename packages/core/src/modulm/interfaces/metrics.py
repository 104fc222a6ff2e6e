"""Stat loggers (group `vllm.stat_logger_plugins`): told after every engine step what happened and how things stand.

An entry point of the group is the class itself. `AsyncLLM` makes one object per engine of a `StatLoggerBase`, and one
for all engines of an `AggregateStatLoggerBase`, in its own process, never in the engine's; offline there are none.
Every logger is called from a thread of its own, so it may be slow: then it is behind, and no step waits for it. One
that raises is called no more. The statistics are those of `types.py`, under vLLM's names.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from modulm.types import IterationStats, SchedulerStats


@dataclass(frozen=True, kw_only=True)
class LoggedModel:
    """What is served.

    Attributes:
        model: Where its checkpoint came from.
        served_model_name: What clients call it.
        max_model_len: Longest sequence, prompt and output together.
    """

    model: str
    served_model_name: str
    max_model_len: int


@dataclass(frozen=True, kw_only=True)
class LoggedCache:
    """The KV cache; attributes are named as vLLM's. `num_gpu_blocks` are those of any device; None: not known."""

    block_size: int
    cache_dtype: str
    enable_prefix_caching: bool
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    num_gpu_blocks: int | None


@dataclass(frozen=True, kw_only=True)
class PluginLoad:
    """One plugin: its name, what became of it ("loaded", "broken" ...), and the seconds that took; None: not loaded."""

    name: str
    state: str
    seconds: float | None


def _no_plugins() -> Sequence[PluginLoad]:
    return ()


@dataclass(frozen=True, kw_only=True)
class LoggedConfig:
    """What a stat logger is constructed with: of vLLM's configuration, the part that loggers read.

    Attributes:
        plugins: Returns how things stand with every plugin of this process now.
    """

    model_config: LoggedModel
    cache_config: LoggedCache
    plugins: Callable[[], Sequence[PluginLoad]] = field(default=_no_plugins)


class StatLoggerBase(ABC):
    """One logger for one engine; constructed as `Class(vllm_config, engine_index)`, by position."""

    @abstractmethod
    def __init__(self, vllm_config: LoggedConfig, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Take in one step of engine `engine_idx`, or of several when this logger has been slow. Must not raise."""

    @abstractmethod
    def log_engine_initialized(self) -> None:
        """Called once, before anything else, when the engine is ready."""

    def log(self) -> None:
        """Write out what was gathered; called every ten seconds."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Take note that the engine sleeps (1, at `level`) or is awake (0, 0); the argument's name is vLLM's."""

    def routes(self) -> Sequence[Any]:
        """Return Starlette routes that a server is to offer, such as /metrics; called once, before it serves."""
        return ()


class AggregateStatLoggerBase(StatLoggerBase):
    """One logger for all engines; constructed as `Class(vllm_config=..., engine_indexes=[...])`, by keyword."""

    @abstractmethod
    def __init__(self, *, vllm_config: LoggedConfig, engine_indexes: list[int]) -> None: ...

    def record_admission_rejection(self, reason: str) -> None:
        """Take note that the server turned a request away because a queue was full; `reason` names the limit."""
