"""Environment variables that choose one of a few ways. Knows no way itself: those who ask say what there is."""

import os
from collections.abc import Mapping

from modulm.errors import ConfigError


def chosen(variable: str, ways: Mapping[str, str]) -> str:
    """Return which of `ways`, by name, a variable says; the first one where it is unset or empty.

    `ways` explains each for the error. Raises `ConfigError` on any other value.
    """
    default = next(iter(ways))
    value = os.environ.get(variable) or default
    if value not in ways:
        names = " and ".join(f"{name!r} ({what})" for name, what in ways.items())
        raise ConfigError(
            f"{variable}={value!r} is unknown. There are {names}. Set one of them, or unset it for {default!r}."
        )
    return value
