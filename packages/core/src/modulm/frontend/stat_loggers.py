"""All stat loggers of a front end: those it was given, those of plugins, and a line of text every ten seconds.

Whoever receives an engine's reports hands them to `record`, which returns at once: each logger has its own thread
(`stat_feed.py`). What a plugin's logger raises when it is made leaves that plugin out; one that was asked for by the
caller must work. Knows no server; `routes` passes on what loggers want to be served.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import Broken, PluginError
from modulm.frontend.spans import spans_to
from modulm.frontend.stat_feed import StatFeed
from modulm.frontend.stat_lines import StatLines
from modulm.interfaces.metrics import (
    AggregateStatLoggerBase,
    LoggedCache,
    LoggedConfig,
    LoggedModel,
    PluginLoad,
    StatLoggerBase,
)
from modulm.log import logger
from modulm.plugins import discovery, families
from modulm.plugins.hooks import load_stat_loggers
from modulm.plugins.loading import failed, run
from modulm.plugins.records import LoadRecord, leave_out
from modulm.plugins.report import as_objects
from modulm.types import EngineStats, IterationStats, SchedulerStats

Factory = Callable[[LoggedConfig, int], StatLoggerBase] | type[AggregateStatLoggerBase]
"""Makes one logger per engine, called by position; or the class of a logger for all, called by keyword."""
_Made = tuple[AggregateStatLoggerBase, str, Callable[[BaseException], None]]
"""A logger, what to call it in messages, and who is told when it fails."""
_PATIENCE_S = 1.0


def logged_config(
    config: EngineConfig,
    model: ModelConfig,
    num_kv_blocks: int | None = None,
    plugin_records: Callable[[], list[dict[str, Any]]] = lambda: as_objects(discovery.records()),
) -> LoggedConfig:
    """Return what stat loggers are told of an engine.

    Args:
        num_kv_blocks: Where it is known.
        plugin_records: Returns the load records of all processes, as `report.as_objects` does; else this process's.
    """
    return LoggedConfig(
        model_config=LoggedModel(
            model=config.model,
            served_model_name=config.served_model_name or config.model,
            max_model_len=model.max_model_len,
        ),
        cache_config=LoggedCache(
            block_size=config.block_size,
            cache_dtype=config.kv_cache_dtype,
            enable_prefix_caching=config.enable_prefix_caching,
            gpu_memory_utilization=config.gpu_memory_utilization,
            kv_cache_memory_bytes=config.kv_cache_memory_bytes,
            num_gpu_blocks=num_kv_blocks,
        ),
        plugins=lambda: [
            PluginLoad(name=each["name"], state=each["state"], seconds=each["seconds"]) for each in plugin_records()
        ],
    )


class StatLoggers:
    """Feeds every logger. `record`, `record_admission_rejection` and `close` from any thread.

    Args:
        config: From `logged_config`.
        factories: Loggers that the caller asks for; they come before those of plugins. What they raise is raised.
        engine_indexes: The engines that reports will come from.
        enable_default_loggers: Whether to write a line of text every `interval_s` seconds; shown at level INFO.
        otlp_traces_endpoint: An OpenTelemetry collector that gets a span of every request submitted with
            `trace_headers`.

    Attributes:
        makes_spans: Whether requests are to be submitted with `trace_headers`.
    """

    def __init__(
        self,
        config: LoggedConfig,
        *,
        factories: Sequence[Factory] = (),
        engine_indexes: Sequence[int] = (0,),
        enable_default_loggers: bool = True,
        otlp_traces_endpoint: str | None = None,
        interval_s: float = 10.0,
    ) -> None:
        self.makes_spans = otlp_traces_endpoint is not None
        self._config = config
        self._engine_indexes = list(engine_indexes)
        wanted = [(_fitted(factory), _name(factory)) for factory in factories]
        if otlp_traces_endpoint is not None:
            wanted.append((spans_to(otlp_traces_endpoint), "The stat logger of spans"))
        made: list[_Made] = [
            (make(factory, config, self._engine_indexes), asked, _nothing) for factory, asked in wanted
        ]
        for record, logger_class in load_stat_loggers():
            made += self._of_plugin(record, logger_class)
        if enable_default_loggers and logger("stats").isEnabledFor(logging.INFO):
            made.append((make(StatLines, config, self._engine_indexes), "The stat logger of core", _nothing))
        self._feeds = [StatFeed(each, asked, interval_s, on_failure) for each, asked, on_failure in made]

    @property
    def stat_loggers(self) -> list[AggregateStatLoggerBase]:
        """Every logger, in the order in which they are told; those for one engine inside an adapter."""
        return [feed.logger for feed in self._feeds]

    def record(self, stats: EngineStats, engine_index: int = 0) -> None:
        """Hand an engine's report to every logger; nobody may change it afterwards."""
        for feed in self._feeds:
            feed.record(engine_index, stats)

    def record_admission_rejection(self, reason: str) -> None:
        """Tell every logger that a request was turned away because a queue was full."""
        for feed in self._feeds:
            feed.reject(reason)

    def routes(self) -> list[Any]:
        """Return the routes that loggers want to be served."""
        return [route for feed in self._feeds for route in feed.routes()]

    def close(self) -> None:
        """Let every logger take in what is left, for a second at the most, and end."""
        for feed in self._feeds:
            feed.end()
        deadline = time.monotonic() + _PATIENCE_S
        for feed in self._feeds:
            feed.wait(max(0.0, deadline - time.monotonic()))

    def _of_plugin(self, record: LoadRecord, logger_class: Factory) -> list[_Made]:
        try:
            made = run(record, "making it", make, logger_class, self._config, self._engine_indexes)
        except PluginError as error:
            leave_out(record, error)
            return []

        def on_failure(error: BaseException) -> None:
            failed(record, Broken(f"{record.asked} raised {error!r} and was switched off."))

        return [(made, record.asked, on_failure)]


def make(factory: Factory, config: LoggedConfig, engine_indexes: list[int]) -> AggregateStatLoggerBase:
    """Build a logger for all engines, or one for each inside an adapter."""
    if isinstance(factory, type) and issubclass(factory, AggregateStatLoggerBase):
        return factory(vllm_config=config, engine_indexes=engine_indexes)
    return PerEngineStatLoggerAdapter(config, engine_indexes, factory)


class PerEngineStatLoggerAdapter(AggregateStatLoggerBase):
    """Loggers for one engine each, as one for all.

    Attributes:
        per_engine_stat_loggers: The loggers, by engine.
    """

    def __init__(self, vllm_config: LoggedConfig, engine_indexes: list[int], factory: Any) -> None:
        self.per_engine_stat_loggers: dict[int, StatLoggerBase] = {
            index: factory(vllm_config, index) for index in engine_indexes
        }

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Pass on to the engine's own logger."""
        own = self.per_engine_stat_loggers[engine_idx]
        own.record(scheduler_stats, iteration_stats, mm_cache_stats=mm_cache_stats, engine_idx=engine_idx)

    def log_engine_initialized(self) -> None:
        """Pass on to all."""
        for own in self.per_engine_stat_loggers.values():
            own.log_engine_initialized()

    def log(self) -> None:
        """Pass on to all."""
        for own in self.per_engine_stat_loggers.values():
            own.log()

    def routes(self) -> list[Any]:
        """Return the routes of all."""
        return [route for own in self.per_engine_stat_loggers.values() for route in own.routes()]


def _nothing(error: BaseException) -> None:
    """The log has said it."""


def _fitted(factory: Factory) -> Factory:
    """A class may lack optional arguments of the contract; what a function makes must take them."""
    is_logger = isinstance(factory, type) and issubclass(factory, StatLoggerBase)
    return families.check(families.STAT_LOGGER, _name(factory), factory) if is_logger else factory


def _name(factory: Factory) -> str:
    return f"Stat logger {getattr(factory, '__qualname__', repr(factory))!r}"
