"""Stat loggers: the classes to derive from, and the loader of those that packages bring.

They are modulm's own contract, which is vLLM's; loggers in an older style (`log(stats)`, a `record` of fewer arguments)
are understood too: see `modulm_compat_vllm/stat_loggers.py`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm import plugins

from modulm.interfaces import metrics

if TYPE_CHECKING:
    from vllm.config import VllmConfig

load_plugins_by_group = plugins.load_plugins_by_group
STAT_LOGGER_PLUGINS_GROUP = plugins.STAT_LOGGER_PLUGINS_GROUP


class StatLoggerBase(metrics.StatLoggerBase):
    """One logger for one engine; constructed as `Class(vllm_config, engine_index)`."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Let a class in an older style be one of today's."""
        from modulm_compat_vllm.stat_loggers import modernise

        super().__init_subclass__(**options)
        modernise(cls)


class AggregateStatLoggerBase(StatLoggerBase, metrics.AggregateStatLoggerBase):
    """One logger for all engines; constructed as `Class(vllm_config=..., engine_indexes=[...])`."""


PerEngineStatLoggerFactory = Callable[["VllmConfig", int], StatLoggerBase]
AggregateStatLoggerFactory = type[AggregateStatLoggerBase]
StatLoggerFactory = PerEngineStatLoggerFactory | AggregateStatLoggerFactory


def load_stat_logger_plugin_factories() -> list[type[metrics.StatLoggerBase]]:
    """Return the classes of the stat loggers that packages bring. Raises `TypeError` for one that is none."""
    found = load_plugins_by_group(STAT_LOGGER_PLUGINS_GROUP)
    for name, each in found.items():
        if not (isinstance(each, type) and issubclass(each, metrics.StatLoggerBase)):
            raise TypeError(f"Stat logger plugin {name!r} must be a subclass of StatLoggerBase (got {each!r}).")
    return list(found.values())
