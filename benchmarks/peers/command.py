"""What the commands that measure have in common: words of options, the load before, versions, the head of a report."""

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from peers import machine, score, table
from peers.environments import ROOT

_BUSY_LOAD = 0.5


def words_of(text: str) -> list[str]:
    """Split at commas; the empty text is no word."""
    return [word for word in text.split(",") if word]


def load_before() -> float:
    """Return the machine's load; a warning is printed where it is not quiet."""
    load = round(os.getloadavg()[0], 2)
    if load > _BUSY_LOAD:
        print(f"This machine is busy (load {load}): engines whose threads spin will crawl, and figures do not count.")
    return load


def own_versions() -> dict[str, str]:
    """Return the versions of modulm's packages that compute."""
    found = {}
    for name in ("modulm-core", "modulm-kernels-cpu", "modulm-quant-gguf"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def report(done: dict[str, Any], how: str, rows: list[score.Row], figures: str) -> str:
    """Return the text for terminal and README; `how` says what was run."""
    installed = ", ".join(f"{name} {value}" for name, value in done["versions"].items())
    reached = sum(row.verdict == "reached" for row in rows)
    return "\n\n".join(
        [
            f"Machine: {machine.words(done['machine'])}. {done['threads']} threads.",
            f"Versions: {installed}. {how}. Load before: {done['load_before']}.",
            table.bars(rows),
            f"{reached} of {len(rows)} lines reached. Medians over rounds; ratios are taken within a round.",
            figures,
        ]
    )


def publish(text: str, bars: str, name: str) -> None:
    """Put the whole text into this folder's README, what must be reached into the project's too."""
    table.write_between(ROOT / "benchmarks/README.md", text, name)
    table.write_between(ROOT / "README.md", bars, name)
