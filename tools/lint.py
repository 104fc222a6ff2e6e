"""Run every check that needs no test run, show which passed, and print the output of those that did not.

The list below is the whole of `make lint`; hooks and CI run the same. Where to look next: `test.py` for the tests.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from workspace import ROOT, packages


def checks() -> dict[str, list[str]]:
    """Return each check's name and command, in the order in which they are most likely to fail quickly."""
    python, bin_folder = sys.executable, Path(sys.executable).parent
    sources = [str(source.relative_to(ROOT)) for p in packages() if (source := p.path / "src").exists()]
    return {
        "style": [f"{bin_folder}/ruff", "check", "."],
        "format": [f"{bin_folder}/ruff", "format", "--check", "."],
        "layout": [python, "tools/check_packages.py"],
        "sizes": [python, "tools/sizes.py", "--quiet"],
        "known": [python, "tools/gen_known.py", "--check"],
        "contracts": [python, "tools/gen_contracts.py", "--check"],
        "lock": [python, "tools/lock.py", "--check"],
        "changes": [python, "tools/release.py", "--check"],
        "imports": [f"{bin_folder}/lint-imports", "--no-logo"],
        "types": [python, "-m", "mypy", *sources, "tools", "benchmarks/peers"],
    }


def _sources() -> list[Path]:
    """Native packages are not installed here, but their imports are judged as well."""
    return [package.path / "src" for package in packages() if package.is_native]


def main() -> int:
    """Run the tool; see `--help`."""
    commands = checks()
    parser = argparse.ArgumentParser(description="Run all checks, or only the named ones.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(commands)}")
    names = parser.parse_args().names or list(commands)
    unknown = sorted(set(names) - set(commands))
    if unknown:
        parser.error(f"check {unknown[0]!r} is unknown. There are: {', '.join(commands)}.")
    failed = []
    for name in names:
        started = time.monotonic()
        run = subprocess.run(
            commands[name],
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "120", "PYTHONPATH": os.pathsep.join(map(str, _sources()))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        word = "ok" if run.returncode == 0 else "FAILED"
        print(f"lint {name:<9} {word:<7} {time.monotonic() - started:5.1f} s", flush=True)
        if run.returncode:
            failed.append(name)
            print(f"$ {' '.join(commands[name])}\n{run.stdout}", flush=True)
    if failed:
        print(f"lint: {len(failed)} of {len(names)} checks failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
