"""The current platform: which kind of device this process works on, found on first use.

Order: `VLLM_TARGET_DEVICE=cpu`; else the one active platform of group `vllm.platform_plugins`; else core's own, CUDA
before CPU. Every plugin is probed, none is imported before that. Knows no device: that is what platforms are for.
"""

import os
from dataclasses import dataclass, field
from typing import Any, cast

from modulm.errors import Broken, Incompatible, PluginError, UnknownName, Unsupported, did_you_mean
from modulm.interfaces.platform import Platform
from modulm.log import logger
from modulm.plugins import discovery, families, loading, refs
from modulm.plugins import records as state
from modulm.plugins.builtin import DISTRIBUTION, PLATFORMS, PROBES
from modulm.plugins.families import PLATFORM
from modulm.plugins.process import PerProcess
from modulm.plugins.records import LoadRecord, is_strict, leave_out

_log = logger("plugins")
_FALLBACK = list(PLATFORMS)[-1]


@dataclass
class _Current:
    """The platforms of this process: what was asked for -> what it got; "auto" is whichever came first."""

    chosen: dict[str, Platform] = field(default_factory=dict)


_current = PerProcess(_Current)


def current_platform(asked: str = "auto") -> Platform:
    """Return the platform of this process, made on first use and kept.

    Args:
        asked: "auto", a device type ("cpu", "cuda" ...), a platform's name, or `distribution:name`. Once a platform
            has been chosen, "auto" returns that one.

    Raises:
        Incompatible: Two packages offer an active platform, or the class is no `Platform`.
        Broken, Unsupported: The platform that was asked for fails, or says that it cannot serve here.
        UnknownName: There is none of that name.
    """
    with _current.lock:
        chosen = _current.get().chosen
        if asked not in chosen:
            platform = _automatic() if asked == "auto" else _named(asked)
            same = next((known for known in chosen.values() if type(known) is type(platform)), platform)
            chosen[asked] = same
            chosen.setdefault("auto", same)
            _log.info("Platform: %s (%s).", same.name, families.describe(type(same)))
        return chosen[asked]


def reset() -> None:
    """Forget the choice (tests)."""
    _current.reset()


def _automatic() -> Platform:
    if _target_is_cpu():  # as in vLLM, plugins are not even imported then
        return _built_in(_FALLBACK)
    active = _active_plugins()
    if active:
        return _only(active)
    for name in PLATFORMS:
        try:
            if _probe_built_in(name):
                return _built_in(name)
        except PluginError as error:
            if is_strict():
                raise
            _log.warning("%s It is passed over.", error, exc_info=error)
    return _built_in(_FALLBACK)


def _named(asked: str) -> Platform:
    """Return the platform that was asked for: by a plugin's own name, a plugin's device type, or built in."""
    if _target_is_cpu() and asked != "cpu":
        _log.warning("VLLM_TARGET_DEVICE='cpu' is overruled by device=%r, which was asked for explicitly.", asked)
    if (asked == "cpu" and _target_is_cpu()) or asked.partition(":")[0] == DISTRIBUTION:
        return _need_built_in(asked.removeprefix(f"{DISTRIBUTION}:"))
    record = discovery.find(PLATFORM, asked)
    if record is not None:
        path = loading.call(record)
        if path is None:
            raise Unsupported(f"{record.asked} answers that it cannot serve on this machine. {_others()}")
        return _make(record, path)
    active = _active_plugins()
    fitting = [(record, platform) for record, platform in active if asked in (platform.name, platform.device_type)]
    if fitting:
        return _only(fitting)
    if asked not in PLATFORMS:
        raise _unknown(asked)
    return _need_built_in(asked)


def _unknown(asked: str) -> PluginError:
    """A platform plugin that failed may be the one that was meant, so its failure is the answer."""
    unfit = (state.BROKEN, state.INCOMPATIBLE)
    failed = [record for record in discovery.records(PLATFORM) if record.state in unfit]
    if failed:
        return Broken(f"Platform {asked!r} is not there, and a plugin that may provide it failed: {failed[0].reason}")
    names = [*PLATFORMS, *(record.name for record in discovery.records(PLATFORM) if record.usable)]
    hint = did_you_mean(asked, names) or " Leave the option at 'auto' to choose automatically."
    return UnknownName(f"Platform {asked!r} is unknown. There are: {', '.join(names)}.{hint}")


def _active_plugins() -> list[tuple[LoadRecord, Platform]]:
    """Probe every platform plugin, and make those that say they serve here; a failure leaves a plugin out."""
    active = []
    for record in discovery.usable(PLATFORM):
        try:
            path = loading.call(record)
            if path is None:
                record.state, record.reason = state.INACTIVE, "it says that it does not serve on this machine"
            else:
                active.append((record, _make(record, path)))
        except PluginError as error:
            leave_out(record, error)
    return active


def _only(active: list[tuple[LoadRecord, Platform]]) -> Platform:
    if len(active) > 1:
        names = " and ".join(f"{record.name!r} ({record.origin})" for record, _ in active)
        choices = " or ".join(repr(record.qualified) for record, _ in active)
        raise Incompatible(
            f"{len(active)} platform plugins are active: {names}. Only one can serve. Choose with device={choices}, "
            "leave the others out of VLLM_PLUGINS, or uninstall them."
        )
    return active[0][1]


def _make(record: LoadRecord, path: Any) -> Platform:
    platform_class = loading.load_class(record, path)
    return cast(Platform, loading.run(record, f"making {path!r}", platform_class))


def _need_built_in(name: str) -> Platform:
    if name not in PLATFORMS:
        raise _unknown(name)
    if not _probe_built_in(name):
        raise Unsupported(f"Platform {name!r} (built in) cannot serve: no such device is usable here. {_others()}")
    return _built_in(name)


def _probe_built_in(name: str) -> bool:
    if name not in PROBES:
        return True
    asked = f"Platform {name!r} (built in)"
    probe = refs.resolve(PROBES[name], asked)
    try:
        return bool(probe())
    except Exception as error:
        raise refs.broken(asked, "probing for it", error) from error


def _built_in(name: str) -> Platform:
    asked = f"Platform {name!r} (built in)"
    platform_class = refs.resolve(PLATFORMS[name], asked)
    families.check(PLATFORM, asked, platform_class)
    return cast(Platform, platform_class())


def _others() -> str:
    return f"{_FALLBACK!r} always works; 'auto' takes the best that does."


def _target_is_cpu() -> bool:
    return os.environ.get("VLLM_TARGET_DEVICE", "").strip().lower() == "cpu"
