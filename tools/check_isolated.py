"""Build each package's wheel and run that package's own tests with the wheel alone in a fresh environment.

Finds what works here only because a neighbour is installed: an undeclared dependency, a file missing from the wheel, an
import of a sibling. Third-party packages are links to those of `.venv`, at the versions of `uv.lock`: see
`linked_environment.py`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import linked_environment
from workspace import ROOT, Package, expected_import, packages, requirement_name


def run(command: Sequence[str | Path], where: Path) -> None:
    """Run a command in the folder `where`; exit with its output where it fails."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=where, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"{done.stdout[-6000:]}\n$ {' '.join(words)}\nended with status {done.returncode}")


def build(package: Package, wheels: Path) -> Path:
    """Build the package's wheel into `wheels`, with the back end that is installed here, and return it."""
    build_wheel = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    run([*build_wheel, "--outdir", str(wheels), str(package.path)], package.path)
    stem = package.distribution.replace("-", "_")
    (wheel,) = wheels.glob(f"{stem}-{package.version}-*.whl")
    return wheel


def declared(package: Package, ours: dict[str, Package]) -> list[Package]:
    """Return `package` and those of `ours` that it or its tests depend on, directly or through another."""
    found = [package, *tested_with(package, ours)]
    for one in found:
        names = [requirement_name(line) for line in one.project.get("dependencies", [])]
        found += [ours[name] for name in names if name in ours and ours[name] not in found]
    return found


def tested_with(package: Package, ours: dict[str, Package]) -> list[Package]:
    """Return those of `ours` that the package's tests ask for."""
    names = [requirement_name(line) for line in package.test_requirements]
    return [ours[name] for name in names if name in ours]


def environment(place: Path, chosen: Sequence[Package], tests_need: list[str]) -> Path:
    """Make an environment in `place` with all that packages and their tests declare, but none of the packages."""
    ours = {one.distribution: one.project for one in packages()}
    lines = [line for one in chosen for line in one.project.get("dependencies", [])]
    return linked_environment.make(place, linked_environment.third_party([*lines, *tests_need], ours))


def install_alone(wheels: Sequence[Path], python: Path) -> None:
    """Install the wheels, and have what they declare checked against what is there."""
    pip = [str(Path(sys.executable).parent / "uv"), "pip"]
    if wheels:
        run([*pip, "install", "--quiet", "--offline", "--no-deps", "--no-cache", "--python", python, *wheels], ROOT)
    run([*pip, "check", "--python", python], ROOT)


def unasked(python: Path, allowed: set[str]) -> list[str]:
    """Return the packages of this workspace found in the environment that are not `allowed`."""
    script = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    names = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    ours = {package.distribution for package in packages()}
    return sorted((set(names) & ours) - allowed)


def check(package: Package, wheels: dict[str, Path], tiers: list[str]) -> None:
    """Install the package's wheel alone, import it and run the package's tests of `tiers`; exit with what failed."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="modulm-isolated-") as name:
        folder = Path(name)
        ours = {one.distribution: one for one in packages()}
        chosen = declared(package, ours)
        python = environment(folder / "env", chosen, package.test_requirements)
        install_alone([wheels[one.folder] for one in chosen], python)
        asked = {one.distribution for one in tested_with(package, ours)}
        extra = unasked(python, {package.distribution, "modulm-core", *asked})
        if extra:
            sys.exit(f"{package.distribution} brings {extra}, which it must not depend on.")
        imported = expected_import(package.folder)
        if imported:
            run([python, "-c", f"import {imported}; assert {name!r} in {imported}.__file__"], folder)
        suites = [path for tier in tiers if any((path := package.path / "tests" / tier).glob("**/test_*.py"))]
        if suites:
            run([python, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", *suites], folder)
    ran = ", ".join(path.name for path in suites) or "no tests"
    seconds = time.monotonic() - started
    print(f"{package.distribution:<24} alone: installs, imports, passes ({ran}; {seconds:.0f} s)", flush=True)


def main() -> int:
    """Run the tool; see `--help`."""
    parser = argparse.ArgumentParser(description="Check that each package's wheel works alone.")
    parser.add_argument("only", nargs="*", metavar="PACKAGE", help="folder names; all by default")
    parser.add_argument("--full", action="store_true", help="run tests/cpu as well as tests/null")
    arguments = parser.parse_args()
    wheels = ROOT / "build/wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    ours = {package.distribution: package for package in packages()}
    chosen = [package for package in packages() if not arguments.only or package.folder in arguments.only]
    needed = {one.folder: one for package in chosen for one in declared(package, ours)}
    built = {folder: build(package, wheels) for folder, package in needed.items()}
    for package in chosen:
        check(package, built, ["null", "cpu"] if arguments.full else ["null"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
