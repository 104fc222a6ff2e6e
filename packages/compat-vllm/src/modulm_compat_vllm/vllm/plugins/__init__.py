"""The loaders of entry-point groups, over modulm's own: the same records, the same policy (VLLM_PLUGINS)."""

from collections.abc import Callable, Iterable
from typing import Any

from vllm.logger import init_logger

from modulm.errors import PluginError
from modulm.plugins import discovery, families, hooks, loading
from modulm.plugins.bootstrap import bootstrap
from modulm.plugins.records import leave_out

DEFAULT_PLUGINS_GROUP = families.GENERAL
PLATFORM_PLUGINS_GROUP = families.PLATFORM
IO_PROCESSOR_PLUGINS_GROUP = families.IO_PROCESSOR
STAT_LOGGER_PLUGINS_GROUP = families.STAT_LOGGER
ENDPOINT_PLUGINS_GROUP = families.ENDPOINT
logger = init_logger(__name__)


def load_plugins_by_group(group: str) -> dict[str, Callable[[], Any]]:
    """Import what the plugins of a group name, and return it by entry point's name; calls none.

    One that fails to import is left out with a warning, and shown as broken by `modulm plugins list`.
    """
    found = {}
    for record in discovery.usable(group):
        try:
            found[record.name] = loading.load(record)
        except PluginError as error:
            leave_out(record, error)
    return found


def load_general_plugins() -> None:
    """Run the general plugins of this process, each once; modulm's processes have done so already."""
    bootstrap()


def load_endpoint_plugins(supported_tasks: Iterable[str] | None = None) -> list[Any]:
    """Build the endpoint plugins that VLLM_PLUGINS names and whose task is supported; one that fails is left out."""
    return hooks.load_endpoint_plugins(supported_tasks)
