"""Every error modulm raises on purpose, in one tree.

A message has four parts, in this order: what was asked (`!r`), why it cannot be, what there is, what to do.
`assert` is kept for our own invariants and never judges input. Knows nothing of rooms; imports nothing of ours.
"""

import difflib
from collections.abc import Iterable


class ModulmError(Exception):
    """Root of the tree: catching it catches everything modulm raises on purpose."""


class ConfigError(ModulmError, ValueError):
    """An option, or a combination of options, that cannot be honoured."""


class SettingError(ConfigError):
    """A setting of a plugin's own (`--plugin-config`) that the plugin does not have, or cannot honour."""


class PluginError(ModulmError):
    """A plugin that was asked for cannot serve."""


class UnknownName(PluginError, ValueError):
    """A registry has no entry of this name, and no known package provides it."""


class NotInstalled(PluginError, ValueError):
    """A known package provides the name, but it is not installed."""


class Broken(PluginError, RuntimeError):
    """The plugin is installed, but its import, registration or call failed; the cause is chained."""


class Incompatible(PluginError, ValueError):
    """The plugin exists but has the wrong type, interface version or collides with another."""


class Unsupported(PluginError, ValueError):
    """The plugin works, but not for what was asked of it (model, device, dtype)."""


class CheckpointError(ModulmError, ValueError):
    """A checkpoint is missing, damaged or not what it claims; names the file and the tensor or key."""


class RequestError(ModulmError, ValueError):
    """A request that cannot be served as asked: the client's to mend (HTTP 4xx).

    `parameter` names the offending field where there is one.
    """

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class EngineError(ModulmError, RuntimeError):
    """The engine failed; not the client's fault (HTTP 5xx).

    `retry_after_s` says when the same request may be served, where that is known.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return ` Did you mean 'x'?` for the nearest of `known`, or an empty string when none is near.

    `cutoff` is the least likeness, from 0 to 1.
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" Did you mean {near[0]!r}?" if near else ""
