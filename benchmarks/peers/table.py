"""Rows as text: a Markdown table for the terminal and for the README between its markers. Decides nothing."""

import statistics
from pathlib import Path

from peers.score import Record, Row, Source, by_round

_COLUMNS = ("first_token", "memory")


def number(value: float | None, digits: int = 0) -> str:
    """Return a number as text, nothing for None."""
    return "" if value is None else f"{value:,.{digits}f}"


def grid(lines: list[list[str]], left: tuple[int, ...]) -> str:
    """Return a Markdown table; the first line is its head, all columns but `left` are set to the right."""
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(lines[0]))]

    def text(line: list[str]) -> str:
        cells = [
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        return f"| {' | '.join(cells)} |"

    rule = ["-" * w if i in left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join([text(lines[0]), text(rule), *map(text, lines[1:])])


def bars(rows: list[Row]) -> str:
    """Return the table of what must be reached; without a peer the figure stands where the ratio would."""
    head = ["", "best peer", "modulm", "peer", "ratio", "spread", "bar", "verdict"]
    return grid([head, *map(_bar, rows)], left=(0, 1, 7))


def _bar(row: Row) -> list[str]:
    line = row.line
    digits = {"tok/s": 0, "MB": 0, "ms": 1}.get(line.unit, 2)
    spread = "" if row.low is None or row.high is None else f"{row.low:.2f} to {row.high:.2f}"
    if row.low is not None and line.unit == "MB":
        spread = f"{row.low:.0f} to {row.high:.0f}"
    ours = number(row.ours, digits)
    bar = f"{'at most' if line.at_most else 'at least'} {line.bar:g}{'' if line.peers else ' ' + line.unit}".strip()
    ratio = number(row.score, 2) if line.peers else ""
    peer = str(row.best) if row.best else ""
    return [line.label, peer, ours, number(row.theirs, digits), ratio, spread, bar, row.verdict]


def figures(records: list[Record], names: tuple[str, ...]) -> str:
    """Return medians of every engine: `names` in tok/s, then first token in seconds and peak memory in MB."""
    sources: list[Source] = list(dict.fromkeys(record.source for record in records))
    head = ["tok/s", *names, "first token, s", "peak memory, MB"]
    lines = [head]
    for source in sources:
        values = [list(by_round(records, source, name).values()) for name in (*names, *_COLUMNS)]
        medians = [statistics.median(each) if each else None for each in values]
        digits = [0] * len(names) + [1, 0]
        lines.append([str(source), *(number(value, d) for value, d in zip(medians, digits, strict=True))])
    return grid(lines, left=(0,))


def write_between(file: Path, text: str, name: str) -> None:
    """Put `text` between the markers of that name in `file`. Raises `ValueError` where they are not there."""
    first, last = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    whole = file.read_text()
    head, begin, rest = whole.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{file.name} lacks the markers {first} and {last}.")
    file.write_text(f"{head}{first}\n\n{text.strip()}\n\n{last}{tail}")
