"""Loaders of the vLLM groups that a room asks for: stat loggers, endpoints, IO processors, logits processors.

Each says in its docstring which process calls it. General plugins are in `bootstrap.py`, platforms in `platforms.py`.
Loads and checks; builds nothing except endpoint plugins, whose entry point is a factory.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from modulm.errors import ConfigError, Incompatible, PluginError, UnknownName, Unsupported, did_you_mean
from modulm.log import logger, warn_once
from modulm.plugins import contracts, discovery, families, loading, refs
from modulm.plugins import records as state
from modulm.plugins.families import ENDPOINT, IO_PROCESSOR, LOGITS, STAT_LOGGER, describe
from modulm.plugins.records import LoadRecord, leave_out

_log = logger("plugins")


def load_stat_loggers() -> list[tuple[LoadRecord, Any]]:
    """Return the stat logger classes, each with its record; called by a server's front end, never offline.

    Raises `Incompatible` for an entry point that is not a class deriving from `StatLoggerBase`.
    """
    found = []
    for record in discovery.usable(STAT_LOGGER):
        try:
            logger_class = loading.load(record)
        except PluginError as error:
            leave_out(record, error)
            continue
        found.append((record, loading.checked(record, logger_class)))
    return found


def load_endpoint_plugins(supported_tasks: Iterable[str] | None) -> list[Any]:
    """Build the endpoint plugins that VLLM_PLUGINS names and that serve a supported task; called by an API server.

    Args:
        supported_tasks: What the engine can do; None keeps out every plugin that requires a task.
    """
    tasks = set(supported_tasks or ())
    found = []
    for record in discovery.usable(ENDPOINT):
        try:
            plugin = build_endpoint(record)
        except PluginError as error:
            leave_out(record, error)
            continue
        if plugin.required_tasks is None or tasks.intersection(plugin.required_tasks):
            found.append(plugin)
        else:
            need = " or ".join(plugin.required_tasks)
            record.state, record.reason = state.INACTIVE, f"it requires {need}, which this server does not do"
            _log.info("%s is not attached: %s.", record.asked, record.reason)
    unnamed = [record.name for record in discovery.records(ENDPOINT) if record.state == state.NEEDS_NAMING]
    if unnamed:
        listed = ", ".join(unnamed)
        warn_once(_log, f"Endpoint plugins are installed but not named in VLLM_PLUGINS, so they are off: {listed}.")
    return found


def load_io_processor(name: str) -> type:
    """Return the IO processor class that was asked for by name; called by the front end.

    Raises:
        UnknownName: No package provides it.
        Unsupported: It says that it is not for this environment.
        Broken, Incompatible: It fails, or is no `IOProcessor`.
    """
    record = discovery.find(IO_PROCESSOR, name)
    if record is None:
        names = [r.name for r in discovery.records(IO_PROCESSOR) if r.usable]
        raise UnknownName(
            f"IO processor {name!r} is unknown. Installed: {', '.join(names) or 'none'}.{did_you_mean(name, names)}"
        )
    path = loading.call(record)
    if path is None:
        raise Unsupported(f"{record.asked} answers that it does not work in this environment.")
    return loading.load_class(record, path)


def load_logits_processors(extra: Sequence[type | str] = ()) -> list[type]:
    """Return the logits processor classes, plugins' first; called by the worker and by the front end.

    VLLM_PLUGINS does not filter this group, as in vLLM, and every failure is an error: a processor that is silently
    missing would change what the model says.

    Args:
        extra: Classes or "module:Class" strings from the configuration.

    Raises:
        Broken: One fails to import; the cause is chained.
        ConfigError: A string of `extra` is not of that form.
        Incompatible: One does not derive from `LogitsProcessor`, or is written for other versions of the contract.
    """
    for record in discovery.records(LOGITS):
        if record.state == state.INCOMPATIBLE:
            raise Incompatible(
                f"{record.asked} is installed, so it would be applied, but {record.reason}. To go on without it, "
                f"uninstall it or set MODULM_DISABLE_PLUGINS={record.name}."
            )
    found = [loading.checked(record, loading.load(record)) for record in discovery.usable(LOGITS)]
    return found + [_extra_processor(item) for item in extra]


def build_endpoint(record: LoadRecord) -> Any:
    """Call the plugin's factory. Raises `Broken`, or `Incompatible` for what is no endpoint plugin."""
    from modulm.interfaces.endpoint import EndpointPlugin

    plugin = loading.call(record)
    if not isinstance(plugin, EndpointPlugin):
        asked = record.asked
        need = "name, required_tasks, attach_router and init_state"
        raise Incompatible(f"{asked} answered {describe(plugin)}, but must answer an object with {need}.")
    try:
        contracts.keep(plugin, EndpointPlugin)
    except Incompatible as error:
        raise Incompatible(f"{record.asked} answered {describe(plugin)}, {error}") from None
    return plugin


def _extra_processor(item: type | str) -> type:
    asked = f"Logits processor {item!r}"
    found: Any = item
    if isinstance(item, str):
        if item.count(":") != 1:
            raise ConfigError(f"{asked} is no reference to a class. Write 'module:Class'.")
        found = refs.resolve(item, asked)
    checked: type = families.check(LOGITS, asked, found)
    return checked
