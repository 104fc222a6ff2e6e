"""The one call that fills the registries: every kind of process makes it, and so does any program that embeds us.

Order: the lock, general plugins, then the parser files that the configuration names. A general plugin's entry point is
a function without arguments; it is called once in every process that serves or runs an engine, before anything is
chosen, and what it registers is taken back if it raises. Platforms come later, on first use (`platforms.py`); the other
hooks when their room asks for them (`hooks.py`). Knows no room.
"""

import sys
import zlib
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modulm.errors import Broken, ConfigError, PluginError, did_you_mean
from modulm.interfaces.settings import provide
from modulm.log import logger
from modulm.plugins import discovery, loading, lock
from modulm.plugins import records as state
from modulm.plugins.families import GENERAL
from modulm.plugins.process import PerProcess
from modulm.plugins.records import LoadRecord, leave_out
from modulm.plugins.refs import PASSING
from modulm.plugins.registry import transaction
from modulm.plugins.watch import watched

if TYPE_CHECKING:
    from modulm.config import EngineConfig

PARSER_OPTIONS = ("tool_parser_plugin", "reasoning_parser_plugin")
_log = logger("plugins")


class _Progress:
    """How far this process has come."""

    def __init__(self) -> None:
        self.running = False
        self.held_to: str | None = None
        self.general_done = False
        self.parser_files: set[tuple[str, str]] = set()


_progress = PerProcess(_Progress)


def bootstrap(config: "EngineConfig | None" = None) -> None:
    """Load what must be loaded before anything is chosen. May be called any number of times, from any thread.

    Each general plugin runs once per process id, so again in a forked child. A call that raised can be repeated.

    Args:
        config: Names parser files to import (`tool_parser_plugin`, `reasoning_parser_plugin`) and the lock that plugins
            are held to (`plugins_lock`), and brings plugins' settings.

    Raises:
        Broken: A parser file failed, or under MODULM_STRICT_PLUGINS=1 any plugin; the cause is chained.
        ConfigError: A parser file does not exist, or no such lock; settings are given for what is not installed.
        SettingError: A plugin cannot honour its settings.
        Incompatible: VLLM_PLUGINS asks for a name that several packages provide, or the lock for what is not here.
    """
    with _progress.lock:
        progress = _progress.get()
        if progress.running:  # a plugin's function called us
            return
        progress.running = True
        try:
            locked = getattr(config, "plugins_lock", None)
            if locked is not None and locked != progress.held_to:
                lock.hold_to(Path(locked).expanduser())
                progress.held_to = locked
            if config is not None:
                _provide_settings(config.plugin_config)
            if not progress.general_done:
                _load_general()
                progress.general_done = True
            for option in PARSER_OPTIONS:
                value = getattr(config, option, None)
                if value is not None and (option, value) not in progress.parser_files:
                    _load_parser_file(option, value)
                    progress.parser_files.add((option, value))
        finally:
            progress.running = False


def _provide_settings(given: dict[str, dict[str, Any]]) -> None:
    names = [record.name for record in discovery.records()]
    for name in given:
        if name not in names:
            raise ConfigError(
                f"plugin_config {name!r} is refused: no installed plugin has that name.{did_you_mean(name, names)} "
                "`modulm plugins list` shows those that are there."
            )
    provide(given)


def load_records() -> list[LoadRecord]:
    """Return what is known of every plugin of this process. Loads nothing; the records change as plugins load."""
    return discovery.records()


def reset() -> None:
    """Forget that anything was loaded, and all settings (tests)."""
    _progress.reset()
    provide({})


def _load_general() -> None:
    for record in discovery.usable(GENERAL):
        try:
            with transaction(record):
                loading.call(record)
        except PluginError as error:
            leave_out(record, error)
    loaded = [record for record in discovery.records(GENERAL) if record.state == state.LOADED]
    if loaded:
        _log.info("Plugins loaded: %s.", ", ".join(_summary(record) for record in loaded))


def _summary(record: LoadRecord) -> str:
    return f"{record.name} ({record.origin}{''.join(f', {entry}' for entry in record.registered)})"


def _load_parser_file(option: str, value: str) -> None:
    """Import a module by name or from a `.py` file; it registers parsers as it is imported."""
    record = LoadRecord(group=option, name=value, value=value, distribution="", version="")
    discovery.add(record)
    try:
        with transaction(record), watched(record, "importing it"):
            _import(option, value)
        record.state = state.LOADED
    except PASSING:
        raise
    except BaseException as error:
        record.state, record.reason = state.BROKEN, f"{type(error).__name__}: {error}"
        if isinstance(error, ConfigError):
            raise
        raise Broken(
            f"{option}={value!r} cannot be imported: {type(error).__name__}: {error}. Correct the file, or leave the "
            "option out."
        ) from error


def _import(option: str, value: str) -> Any:
    if not value.endswith(".py"):
        return import_module(value)
    path = Path(value).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"{option}={value!r} is refused: there is no such file. Give a module or a .py file.")
    name = f"modulm_parser_file_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:  # inherited by fork, registrations included
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
