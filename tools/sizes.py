"""Count lines per file and per function, compare with the limits, and show what changed since a revision.

A limit on files and functions, never on how dense a line is. What must be longer is named in `sizes.toml` with a
reason. Knows nothing of what the code does.
"""

import argparse
import ast
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workspace import ROOT, packages

FILE_STOP = {"runtime": 500, "model": 600, "test": 800, "tool": 200}
FUNCTION_STOP = 80
LOOK_AGAIN = 300
EXCEPTIONS = "tools/sizes.toml"
PACKAGE_STOP = {"core": 26_300, "compat-vllm": 6_000, "testkit": 5_640}
PLUGIN_STOP = 2_500


@dataclass(frozen=True, kw_only=True)
class Size:
    """One file: its path from the root, its lines, and its functions as (qualified name, lines)."""

    path: str
    num_lines: int
    functions: tuple[tuple[str, int], ...]

    @property
    def kind(self) -> str:
        """Which limit holds: runtime, model (and wire schema), test or tool."""
        parts = Path(self.path).parts
        if "tests" in parts or parts[0] == "integration_tests":
            return "test"
        if parts[0] == "tools":
            return "tool"
        return "model" if "models" in parts or parts[-1] == "schema.py" else "runtime"


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, (child.end_lineno or child.lineno) - child.lineno + 1
            name += "."
        yield from _functions(child, name)


def measure(path: str, text: str) -> Size:
    """Return the size of one file."""
    return Size(path=path, num_lines=len(text.splitlines()), functions=tuple(_functions(ast.parse(text))))


def sizes(root: Path = ROOT) -> list[Size]:
    """Return the size of every Python file of ours under `root`, sorted by path."""
    folders = ("packages", "tools", "integration_tests", "benchmarks")
    files = sorted(file for folder in folders for file in (root / folder).rglob("*.py"))
    return [measure(str(file.relative_to(root)), file.read_text()) for file in files]


def past_stop(found: list[Size], exceptions: dict[str, str]) -> list[str]:
    """Return a line for each file, function and package past its limit, and for each exception that is not needed.

    `exceptions` maps `path` or `path::function` to the reason.
    """
    lines, used = [], set()
    for size in found:
        items = [(size.path, size.num_lines, FILE_STOP[size.kind])]
        items += [(f"{size.path}::{name}", length, FUNCTION_STOP) for name, length in size.functions]
        for key, length, stop in items:
            if length > stop and key not in exceptions:
                lines.append(f"{key}: {length} lines, the limit is {stop}; split it, or say why in {EXCEPTIONS}")
            elif length > stop:
                used.add(key)
    for name, total in totals(found).items():
        stop = PACKAGE_STOP.get(name, PLUGIN_STOP)
        if total > stop:
            lines.append(f"packages/{name}: {total} lines of runtime code, the limit is {stop}")
    unneeded = sorted(set(exceptions) - used)
    lines += [f"{key}: has an exception in {EXCEPTIONS} and does not need it" for key in unneeded]
    return lines + [f"{key}: has no reason in {EXCEPTIONS}" for key in used if not exceptions[key].strip()]


def totals(found: list[Size]) -> dict[str, int]:
    """Return the lines of runtime code (all but tests) of each package."""
    sums: dict[str, int] = {}
    for size in found:
        parts = Path(size.path).parts
        if parts[0] == "packages" and size.kind != "test":
            sums[parts[1]] = sums.get(parts[1], 0) + size.num_lines
    return sums


def _at_revision(revision: str, root: Path) -> dict[str, int]:
    listing = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", revision], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split()
    lines = {}
    for path in (p for p in listing if p.endswith(".py")):
        text = subprocess.run(["git", "show", f"{revision}:{path}"], cwd=root, capture_output=True, text=True).stdout
        lines[path] = len(text.splitlines())
    return lines


def table(found: list[Size], before: dict[str, int] | None) -> str:
    """Return the table of files, with the difference from `before` where given (then only files that differ)."""
    rows = []
    now = {size.path: size.num_lines for size in found}
    longest = {size.path: max((n for _, n in size.functions), default=0) for size in found}
    for path in sorted(now if before is None else {*now, *before}):
        difference = now.get(path, 0) - before.get(path, 0) if before is not None else 0
        if before is None or difference:
            mark = "  look again" if now.get(path, 0) > LOOK_AGAIN and "tests" not in path else ""
            change = f" {difference:+6d}" if before is not None else ""
            rows.append(f"{now.get(path, 0):5d}{change} {longest.get(path, 0):5d}  {path}{mark}")
    return "\n".join(["lines  longest function  file", *rows])


def summary(found: list[Size]) -> str:
    """Return medians of runtime files and functions, and each package's total."""
    runtime = [size for size in found if size.kind in ("runtime", "model")]
    files = [size.num_lines for size in runtime] or [0]
    functions = [length for size in runtime for _, length in size.functions] or [0]
    medians = [
        f"median file {statistics.median(files):.0f} lines (aim 120)",
        f"median function {statistics.median(functions):.0f} lines (aim 8)",
    ]
    sums = totals(found)
    return "\n".join([*medians, *(f"{sums.get(p.folder, 0):6d} lines  packages/{p.folder}" for p in packages())])


def main() -> int:
    """Run the tool; see `--help`."""
    parser = argparse.ArgumentParser(
        description="Print sizes of files and functions; exit 1 where one is past its limit."
    )
    parser.add_argument("--quiet", action="store_true", help="only the medians and what is past a limit")
    parser.add_argument("--against", metavar="REV", help="show only what differs in lines from this git revision")
    arguments = parser.parse_args()
    found = sizes()
    if not arguments.quiet:
        print(table(found, _at_revision(arguments.against, ROOT) if arguments.against else None))
    print(summary(found))
    lines = past_stop(found, tomllib.loads((ROOT / EXCEPTIONS).read_text())["exceptions"])
    print("\n".join(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
