"""The list of plugins for people and for programs, from metadata alone: `modulm plugins list`.

Imports no plugin and logs nothing; what is wrong with the list itself comes back as `discovery.notices()`.
"""

from dataclasses import asdict
from importlib import metadata
from typing import Any

from modulm.errors import ConfigError, did_you_mean
from modulm.plugins import discovery
from modulm.plugins import records as state
from modulm.plugins.builtin import BUILTIN, DISTRIBUTION, PLATFORMS
from modulm.plugins.families import NOUNS, PLATFORM
from modulm.plugins.records import LoadRecord


def listed(group: str | None = None) -> list[LoadRecord]:
    """Return core's own implementations and every installed plugin, sorted by group and name.

    Raises `ConfigError` for a group that does not exist.
    """
    if group is not None and group not in NOUNS:
        hint = did_you_mean(group, NOUNS)
        raise ConfigError(f"Plugin group {group!r} is unknown.{hint} There are: {', '.join(NOUNS)}.")
    rows = [*_built_in(), *discovery.records()]
    rows = [row for row in rows if group in (None, row.group)]
    return sorted(rows, key=lambda row: (row.group, row.name, row.distribution))


def as_objects(rows: list[LoadRecord]) -> list[dict[str, Any]]:
    """Return the records as plain data, for JSON."""
    return [asdict(row) for row in rows]


def as_text(rows: list[LoadRecord]) -> str:
    """Return the records as text: a heading per group, a line per plugin, and its reason where it is not usable."""
    lines: list[str] = []
    widths = [max((len(cell) for cell in column), default=0) for column in zip(*map(_cells, rows), strict=True)]
    for index, row in enumerate(rows):
        if index == 0 or rows[index - 1].group != row.group:
            lines.append(f"{'' if index == 0 else chr(10)}{row.group}")
        cells = [cell.ljust(width) for cell, width in zip(_cells(row), widths, strict=True)]
        lines.append(f"  {'  '.join(cells)}  {row.value}".rstrip())
        if row.reason:
            lines.append(f"      {row.reason}")
    return "\n".join(lines)


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
        for name, value in (table if isinstance(table, dict) else {"*": table}).items()
    ]
