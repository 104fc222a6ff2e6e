"""The lock file of plugins: what was installed when somebody found it good, and whether it still is that.

Of each distribution it holds name, version, plugins, and a digest: of its RECORD (which holds a digest of every file it
installed, so files are held against it too), or of its sources, where it was installed in editable mode or without a
RECORD. Lines of RECORD that differ from one installer to the next are left out. Reads files and imports nothing.
"""

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from modulm.errors import ConfigError, Incompatible
from modulm.log import logger
from modulm.plugins import discovery, installed
from modulm.plugins import records as state
from modulm.plugins.families import NOUNS
from modulm.plugins.installed import Installed
from modulm.plugins.policy import canonical
from modulm.plugins.records import is_strict

NAME = "modulm-plugins.lock"
_FORMAT = 1
_HEAD = "# Written by `modulm plugins lock`; `modulm plugins verify` and --plugins-lock compare what is installed.\n"
_log = logger("plugins")


@dataclass(frozen=True, kw_only=True)
class Locked:
    """One distribution as it is to be; `plugins` are written `group:name`."""

    name: str
    version: str
    digest: str
    plugins: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What is not as it is to be. `kind`: "not locked", "missing", "version", "plugins", "digest" or "damaged"."""

    distribution: str
    kind: str
    problem: str


def current() -> list[Locked]:
    """Return what would be locked now: every distribution with plugins for this program."""
    return [_locked(found) for found in _ours()]


def write(path: Path, locked: Iterable[Locked]) -> None:
    """Write a lock file. Raises `ConfigError` when it cannot be written."""
    parts = [f"{_HEAD}lock-version = {_FORMAT}\n"]
    for one in sorted(locked, key=lambda each: canonical(each.name)):
        plugins = "".join(f"  {json.dumps(plugin)},\n" for plugin in one.plugins)
        fields = {"name": one.name, "version": one.version, "digest": one.digest}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
        parts.append(f"[[distribution]]\n{lines}plugins = [\n{plugins}]\n")
    try:
        path.write_text("\n".join(parts), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The lock file {str(path)!r} cannot be written: {error}. Name another place.") from error


def read(path: Path) -> list[Locked]:
    """Read a lock file. Raises `ConfigError` when it is none."""
    remedy = f"Write it with `modulm plugins lock {path}`."
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        if table.get("lock-version") != _FORMAT:
            raise ValueError(f"its lock-version is {table.get('lock-version')!r}, and {_FORMAT} is what is read here")
        return [
            Locked(
                name=str(each["name"]),
                version=str(each["version"]),
                digest=str(each["digest"]),
                plugins=tuple(each["plugins"]),
            )
            for each in table.get("distribution", [])
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ConfigError(f"The lock file {str(path)!r} cannot be read: {reason}. {remedy}") from error


def differences(locked: Iterable[Locked]) -> list[Difference]:
    """Compare what is installed with what was locked; reads every file of what is in both."""
    wanted = {canonical(one.name): one for one in locked}
    found = {canonical(one.name): one for one in _ours()}
    gone = [
        Difference(distribution=one.name, kind="missing", problem=f"{one.name} {one.version} is locked, not installed")
        for name, one in wanted.items()
        if name not in found
    ]
    return gone + [each for name, one in found.items() for each in _compared(one, wanted.get(name))]


def hold_to(path: Path) -> None:
    """Keep out what a lock file does not list, before anything is imported.

    Raises:
        ConfigError: There is no such lock file.
        Incompatible: What it lists is not there or differs; if strict, also when something is not listed.
    """
    found = differences(read(path))
    wrong = [each for each in found if each.kind != "not locked"]
    unlisted = {each.distribution for each in found if each.kind == "not locked"}
    refused = [record for record in discovery.records() if record.usable and record.distribution in unlisted]
    loaded = [record for record in refused if record.state != state.AVAILABLE]
    if wrong or loaded or (refused and is_strict()):
        problems = [each.problem for each in wrong] + [f"{record.asked} is not locked" for record in refused]
        raise Incompatible(
            f"plugins_lock={str(path)!r} is not what is installed: {'; '.join(problems)}. Install what it lists, or, "
            f"if what is installed is to be trusted, write it anew: modulm plugins lock {path}."
        )
    for record in refused:
        record.state, record.reason = state.REFUSED, f"the plugins lock {str(path)!r} does not list it"
    if refused:
        names = ", ".join(f"{record.name} ({record.group}, {record.origin})" for record in refused)
        _log.warning("The plugins lock %r keeps out what it does not list: %s.", str(path), names)


def _ours() -> list[Installed]:
    """Leave out distributions whose entry points are all for somebody else."""
    names = {record.distribution for record in discovery.records() if record.state != state.SKIPPED}
    return [found for found in discovery.inventory().distributions if found.name in names]


def _locked(found: Installed) -> Locked:
    return Locked(name=found.name, version=found.version, digest=_digest(found), plugins=_plugins(found))


def _plugins(found: Installed) -> tuple[str, ...]:
    return tuple(sorted(f"{entry.group}:{entry.name}" for entry in found.entries if entry.group in NOUNS))


def _digest(found: Installed) -> str:
    import hashlib  # and OpenSSL with it, which most processes can do without

    recorded = [] if found.editable is not None else found.recorded
    if recorded:
        text = "\n".join(sorted(f"{path},{digest}" for path, digest in recorded))
        return f"record:sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    whole = hashlib.sha256("\n".join(_plugins(found)).encode())
    for name, path in installed.sources(found).items():
        whole.update(f"\n{name},{hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return f"sources:sha256:{whole.hexdigest()}"


def _compared(found: Installed, wanted: Locked | None) -> list[Difference]:
    def different(kind: str, problem: str) -> list[Difference]:
        return [Difference(distribution=found.name, kind=kind, problem=f"{found.name} {found.version} {problem}")]

    if wanted is None:
        return different("not locked", "is installed and not locked")
    if found.version != wanted.version:
        return different("version", f"is installed, and {wanted.version} is locked")
    if _plugins(found) != wanted.plugins:
        changed = sorted(set(_plugins(found)) ^ set(wanted.plugins))
        return different("plugins", f"declares other plugins than were locked: {', '.join(changed)}")
    digest = _digest(found)
    if digest != wanted.digest:
        how = "sources" if digest.startswith("sources") else "files"
        return different("digest", f"has other {how} than were locked")
    damaged = found.damaged(contents=True) if digest.startswith("record") else []
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        return different("damaged", f"has files that were changed since it was installed: {damaged[0]}{more}")
    return []
