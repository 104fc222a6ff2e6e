"""A plugin's own settings: `--plugin-config NAME.key=value`, read by the plugin as a dataclass or msgspec struct.

Asked for where the plugin is made or registers, in whatever process that is: every process has what the user gave from
before its first plugin is loaded. The plugin states names, types and defaults once, in the class, and checks what types
cannot say in `__post_init__` (raise `ValueError`). What cannot be stops the start and names the setting.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec

from modulm.errors import SettingError, did_you_mean

T = TypeVar("T")
_given: dict[str, dict[str, Any]] = {}


def plugin_settings(
    name: str, kind: type[T], more: Mapping[str, Any] | None = None, option: str = "plugin_config"
) -> T:
    """Return what the user gave for plugin `name`, its entry point's name, as an object of class `kind`.

    Text is also read as JSON where the setting is no text, since that is all that a command line can say.

    Args:
        more: What was given by another option, which `option` names.

    Raises:
        SettingError: A key is unknown or missing, a value is of the wrong type, or `kind` refuses it. Let it pass.
    """
    names = setting_names(kind)
    hints = {key: hint for key, hint in get_type_hints(kind, include_extras=True).items() if key in names}
    given = {}
    for key, value in _given.get(name, {}).items():
        if key in (more or {}):
            raise SettingError(
                f"plugin_config {f'{name}.{key}'!r} is refused: {option} gives {key!r} too. Give it once."
            )
        if key not in hints:
            there_are = f"There are: {', '.join(hints) or 'none'}.{did_you_mean(key, hints)}"
            raise SettingError(
                f"plugin_config {f'{name}.{key}'!r} is refused: plugin {name!r} has no such setting. {there_are}"
            )
        given[key] = _converted(f"plugin_config {f'{name}.{key}'!r}", value, hints[key])
    for key, value in (more or {}).items():
        given[key] = _converted(f"{option} {key!r}", value, hints[key])
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise SettingError(f"{option} of {name!r} is refused: {error}. Given: {given!r}.") from error


def provide(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Set what this process's plugins will be told; called by core before they are loaded, and by tests."""
    _given.clear()
    _given.update({name: dict(given) for name, given in settings.items()})


def setting_names(kind: type[Any]) -> list[str]:
    """Return which settings a class has."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.init]
    return list(kind.__struct_fields__)


def _converted(name: str, value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        if isinstance(value, str):
            try:
                return msgspec.convert(json.loads(value), hint)
            except ValueError:  # msgspec's error is one, too
                pass
        raise SettingError(f"{name}={value!r} is refused: {error}. Give a value of that type.") from error
