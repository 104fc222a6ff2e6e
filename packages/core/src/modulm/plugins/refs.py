"""References: strings that say where an object is, `module:Class` or `module.Class`, resolved on first use.

Two failures must not be confused: a string that is no reference, and a reference whose module fails. The second is
always `Broken` with its cause chained, never "unknown". Knows nothing of who refers to what.
"""

from importlib import import_module
from typing import Any

from modulm.errors import Broken, ConfigError, SettingError

PASSING = (KeyboardInterrupt, SettingError)
"""What a plugin's code may raise that is the user's doing: all else, `SystemExit` too, is the plugin's failure."""


def split(reference: str) -> tuple[str, str]:
    """Return (module, qualified name). Raises `ConfigError` when the string is no reference."""
    text = reference.partition("[")[0].strip()  # entry points may end in " [extra]"
    module, colon, name = text.partition(":")
    if not colon:
        module, _, name = text.rpartition(".")
    if ":" in name or not all((*module.split("."), *name.split("."))):
        raise ConfigError(f"{reference!r} is no reference to an object. Write 'module:Class' or 'module.Class'.")
    return module, name


def resolve(reference: str, asked: str) -> Any:
    """Import what `reference` names and return it.

    Args:
        reference: `module:Class` or `module.Class`; after a colon the name may have dots.
        asked: What was asked for, as the start of a sentence: "Attention backend 'flash' (modulm-x 1.0)".

    Raises:
        Broken: Its module raised while being imported, or has no such attribute; the cause is chained.
    """
    try:
        module, name = split(reference)
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except PASSING:
        raise
    except BaseException as error:  # a plugin's import may raise anything, and must not end the engine
        raise broken(asked, f"loading {reference!r}", error) from error
    return found


def broken(asked: str, doing: str, error: BaseException) -> Broken:
    """Return the error for a plugin that raised `error`; the caller chains it."""
    return Broken(
        f"{asked} is installed but broken: {doing} raised {type(error).__name__}: {error}. Upgrade, mend or remove it."
    )
