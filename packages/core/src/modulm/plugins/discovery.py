"""What is installed: reads entry points from metadata, once per process, and imports no plugin.

Every entry point of a `vllm.*` or `modulm.*` group becomes a load record, judged by `policy.py`. Where to look next:
`loading.py`, through which `registry.py`, `bootstrap.py`, `platforms.py` and `hooks.py` import what is recorded here.
"""

from collections.abc import Iterator, Sequence

from modulm.errors import ConfigError, Incompatible, UnknownName, did_you_mean
from modulm.log import logger
from modulm.plugins import installed, versions
from modulm.plugins import records as state
from modulm.plugins.families import NOUNS
from modulm.plugins.installed import Installed, Inventory
from modulm.plugins.policy import DENIED, VARIABLE, Policy, duplicate, judge, matches
from modulm.plugins.process import PerProcess
from modulm.plugins.records import LoadRecord, is_strict

_log = logger("plugins")


class Discovery:
    """The entry points of this process and the policy they were judged by, as of its first use."""

    def __init__(self) -> None:
        self.policy = Policy.read()
        self.inventory = installed.find()
        self.records = [record for found in self.inventory.distributions for record in _declared(found)]
        self.records.sort(key=lambda record: (record.group, record.name, record.distribution))
        self.announced = False
        judge(self.records, self.policy)


def _declared(found: Installed) -> Iterator[LoadRecord]:
    entries = found.entries
    stated = {entry.name: entry.value for entry in entries if entry.group == versions.GROUP and entry.name in NOUNS}
    for entry in entries:
        if entry.group != versions.GROUP or entry.name not in NOUNS:
            yield LoadRecord(
                group=entry.group,
                name=entry.name,
                value=entry.value,
                distribution=found.name,
                version=found.version,
                interface_versions=stated.get(entry.group, ""),
            )


_discovery = PerProcess(Discovery)


def records(group: str | None = None) -> list[LoadRecord]:
    """Return the load records of one group, or of all. They are live: later loading changes them."""
    return [record for record in _discovery.get().records if group in (None, record.group)]


def inventory() -> Inventory:
    """Return the distributions that the records come from, and what else is on the path."""
    return _discovery.get().inventory


def policy() -> Policy:
    """Return what VLLM_PLUGINS said when this process first looked."""
    return _discovery.get().policy


def add(record: LoadRecord) -> None:
    """Add a record for something that is no entry point (a parser file)."""
    _discovery.get().records.append(record)


def reset() -> None:
    """Forget everything, so that environment and metadata are read again (tests)."""
    _discovery.reset()
    installed.spec.cache_clear()


def usable(group: str) -> list[LoadRecord]:
    """Return the plugins of a group that a loader of all of them must load, having said what is not loaded."""
    announce()
    return [record for record in records(group) if record.usable]


def find(group: str, name: str) -> LoadRecord | None:
    """Return the plugin that was asked for by name or `distribution:name`, or None when there is none.

    Raises:
        ConfigError: VLLM_PLUGINS or MODULM_DISABLE_PLUGINS keeps it from being used.
        Incompatible: Several packages provide the name, or it is written for other versions of the contract.
    """
    found = [record for record in records(group) if matches(name, record) and record.state != state.SKIPPED]
    chosen = [record for record in found if record.usable]
    held = [record for record in found if record.state == state.SHADOWED]
    if held and name != held[0].name:
        chosen = held  # `distribution:name` settles it
    if chosen:
        return chosen[0]
    if len(held) > 1:
        raise Incompatible(duplicate(NOUNS[group], held))
    if found:
        raise _kept_out(name, found[0])
    return None


def _kept_out(name: str, record: LoadRecord) -> Exception:
    why = f"{NOUNS[record.group]} {name!r} comes with {record.origin} and is kept out: {record.reason}."
    if record.state in (state.INCOMPATIBLE, state.REFUSED):
        return Incompatible(why)
    if policy().denies(record):
        return ConfigError(f"{why} Take it out of {DENIED} to use it.")
    return ConfigError(f"{why} Add {record.name!r} to {VARIABLE} to use it.")


def notices() -> list[str]:
    """Return what the user should know of the choice before any is loaded: typing errors, duplicates, misfits."""
    found = records()
    lines = [_unmatched(variable, item, found) for variable, item in policy().unmatched(found)]
    lines += [f"{record.asked} is left out: {record.reason}." for record in found if record.state == state.INCOMPATIBLE]
    for claimants in unsettled(found):
        if len(claimants) > 1:
            lines.append(duplicate(NOUNS[claimants[0].group], claimants))
        else:
            lines.append(f"{claimants[0].asked} is shadowed: {claimants[0].reason}.")
    return lines


def announce() -> None:
    """Log the notices, and what VLLM_PLUGINS turned off; once per process.

    Raises:
        Incompatible: VLLM_PLUGINS asks for a name that several packages provide (if strict: there is such a name, or a
            plugin that is written for other versions of its contract).
        UnknownName: If strict: one of the variables names what no package provides.
    """
    discovery = _discovery.get()
    if discovery.announced:
        return
    missing = discovery.policy.unmatched(discovery.records)
    if missing and is_strict():
        raise UnknownName(_unmatched(*missing[0], discovery.records))
    misfits = [record for record in discovery.records if record.state == state.INCOMPATIBLE]
    if misfits and is_strict():
        raise Incompatible(f"{misfits[0].asked} is installed, but {misfits[0].reason}.")
    for claimants in unsettled(discovery.records):
        if len(claimants) > 1 and (claimants[0].name in discovery.policy.items or is_strict()):
            raise Incompatible(duplicate(NOUNS[claimants[0].group], claimants))
    discovery.announced = True
    for line in notices():
        _log.warning("%s", line)
    off = [record for record in discovery.records if record.state == state.DISABLED]
    denied = [record for record in off if discovery.policy.denies(record)]
    unnamed = [record for record in off if record not in denied]
    if unnamed:
        _log.warning("%s=%r turns off: %s.", VARIABLE, discovery.policy.text, _list(unnamed))
    if denied:
        _log.info("%s turns off: %s.", DENIED, _list(denied))


def _list(found: Sequence[LoadRecord]) -> str:
    return ", ".join(f"{record.name} ({record.group}, {record.origin})" for record in found)


def unsettled(found: Sequence[LoadRecord]) -> list[list[LoadRecord]]:
    """Return the names that no package could be settled on, each with those that claim it."""
    claims: dict[tuple[str, str], list[LoadRecord]] = {}
    for record in found:
        if record.state == state.SHADOWED:
            claims.setdefault((record.group, record.name), []).append(record)
    settled = {(record.group, record.name) for record in found if record.usable}
    return [claimants for key, claimants in claims.items() if key not in settled]


def _unmatched(variable: str, item: str, found: Sequence[LoadRecord]) -> str:
    names = sorted({record.name for record in found} | {record.distribution for record in found})
    advice = "Correct the name, or install its package into this environment."
    if variable == DENIED:
        advice = "Correct the name, or leave it out; what is built in cannot be turned off."
    return (
        f"{variable} names {item!r}, but no installed package provides a plugin of that name."
        f"{did_you_mean(item, names)} Discovered: {_list(found) or 'none'}. {advice}"
    )
