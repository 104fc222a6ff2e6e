"""The list of plugins for people and for programs: `modulm plugins list`, `/v1/plugins`, the start-up line.

Imports no plugin and logs nothing; what is wrong with the list itself comes back as `discovery.notices()`.
"""

from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

from modulm.errors import ConfigError, did_you_mean
from modulm.interfaces import VERSIONS
from modulm.plugins import discovery, doctor, refs, verdicts
from modulm.plugins import records as state
from modulm.plugins.builtin import BUILTIN, DISTRIBUTION, PLATFORMS
from modulm.plugins.families import NOUNS, PLATFORM, PROCESSES
from modulm.plugins.records import LoadRecord
from modulm.plugins.verdicts import Verdict


def listed(group: str | None = None) -> list[LoadRecord]:
    """Return core's own implementations and every installed plugin, sorted by group and name.

    Raises `ConfigError` for a group that does not exist.
    """
    if group is not None and group not in NOUNS:
        hint = did_you_mean(group, NOUNS)
        raise ConfigError(f"Plugin group {group!r} is unknown.{hint} There are: {', '.join(NOUNS)}.")
    seen = verdicts.recall().verdicts
    rows = [*_built_in(), *(_judged(record, seen.get(verdicts.key(record))) for record in discovery.records())]
    rows = [row for row in rows if group in (None, row.group)]
    return sorted(rows, key=lambda row: (row.group, row.name, row.distribution))


def registered() -> list[LoadRecord]:
    """Return a row for each name that general plugins register, as the doctor last saw it."""
    seen = verdicts.recall().verdicts
    pairs = [(record, name) for record in discovery.records() if record.usable
             for name in getattr(seen.get(verdicts.key(record)), "registered", ())]  # fmt: skip
    return [
        replace(
            record,
            group=family,
            name=name.removesuffix(" (override)"),
            registered=[],
            reason=f"registered by {record.name!r}",
        )
        for record, (family, _, name) in ((record, entry.partition(":")) for record, entry in pairs)
    ]


def _judged(record: LoadRecord, verdict: Verdict | None) -> LoadRecord:
    """Return a record with what can be known of a plugin that this process has not loaded."""
    if record.state != state.AVAILABLE:
        return record
    if verdict is None:
        reason = doctor.missing_module(record)
        return replace(record, state=state.BROKEN, reason=reason) if reason else record
    if verdict.state in (state.BROKEN, state.INACTIVE):
        return replace(record, state=verdict.state, reason=f"as the doctor last saw it: {verdict.reason}")
    return replace(record, registered=verdict.registered)


def is_unwell(row: LoadRecord) -> bool:
    """Whether something is to be mended before this plugin can be used as it is meant to be."""
    return row.state in (state.BROKEN, state.INCOMPATIBLE)


def as_objects(rows: list[LoadRecord]) -> list[dict[str, Any]]:
    """Return the records as plain data, for JSON."""
    return [
        {**asdict(row), "interface": VERSIONS.get(row.group), "processes": list(PROCESSES.get(row.group, ()))}
        for row in rows
    ]


def loaded_line(rows: list[LoadRecord]) -> str:
    """Return what is loaded, by package: "modulm-x 1.0 (cpu, gguf), ..."; empty when nothing is."""
    packages: dict[str, list[str]] = {}
    for row in rows:
        if row.state == state.LOADED and row.distribution:
            packages.setdefault(row.origin, []).append(row.name)
    return ", ".join(f"{origin} ({', '.join(dict.fromkeys(names))})" for origin, names in sorted(packages.items()))


def as_text(rows: list[LoadRecord]) -> str:
    """Return the records as text: a heading per group, a line per plugin, and below it what needs saying."""
    lines: list[str] = []
    widths = [max((len(cell) for cell in column), default=0) for column in zip(*map(_cells, rows), strict=True)]
    for index, row in enumerate(rows):
        if index == 0 or rows[index - 1].group != row.group:
            lines.append(f"{'' if index == 0 else chr(10)}{row.group}{_of_group(row.group)}")
        cells = [cell.ljust(width) for cell, width in zip(_cells(row), widths, strict=True)]
        lines.append(f"  {'  '.join(cells)}  {row.value}".rstrip())
        if row.reason:
            lines.append(f"      {row.reason}")
        if row.registered:
            lines.append(f"      registers {', '.join(row.registered)}")
    return "\n".join(lines)


def _of_group(group: str) -> str:
    """Say which version of the contract this is, and which kinds of process load the group."""
    if group not in VERSIONS:
        return ""
    return f" (interface {VERSIONS[group]}; loaded by: {', '.join(PROCESSES[group]) or 'nothing yet'})"


def _cells(row: LoadRecord) -> tuple[str, str, str]:
    return row.name, row.state, row.origin


def _built_in() -> list[LoadRecord]:
    tables = {**BUILTIN, PLATFORM: PLATFORMS}
    version = metadata.version(DISTRIBUTION)
    return [
        LoadRecord(
            group=group, name=name, value=value, distribution=DISTRIBUTION, version=version, state=state.BUILT_IN
        )
        for group, table in tables.items()
        for name, value in (table if isinstance(table, dict) else refs.resolve(table, group)).items()
    ]
