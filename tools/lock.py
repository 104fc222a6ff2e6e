"""Write or check `uv.lock`: exact versions for set-up, and the name of no host.

`uv lock` notes where it found each file. Those places differ from machine to machine, so they are replaced by a
neutral one; set-up takes versions from the lock and files from whatever index its user has configured.
Where to look next: `setup_env.py`, which installs from it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workspace import ROOT, packages, requirement_name

NEUTRAL_INDEX = "https://index.invalid/simple"
NEUTRAL_FILES = "https://index.invalid/files/"

_REGISTRY = re.compile(r'(registry = )"[^"]*"')
_FILE = re.compile(r'((?:url|path) = )"(?:[^"]*/)?([^"/]+)"')
_PLACE = re.compile(r'[a-z][a-z0-9+.-]*://[^"\s]*|"(?:/|~|\.\./)[^"]*"')


def neutral(text: str) -> str:
    """Return the lock `text` with every place replaced: an index by `NEUTRAL_INDEX`, a file by its bare name below."""
    text = _REGISTRY.sub(rf'\1"{NEUTRAL_INDEX}"', text)
    return _FILE.sub(rf'\1"{NEUTRAL_FILES}\2"', text)


def foreign_places(text: str) -> list[str]:
    """Return every URL or path of a machine in `text` that is not the neutral one, each once."""
    found = (match[0] for match in _PLACE.finditer(text))
    return sorted({place for place in found if not place.startswith("https://index.invalid/")})


def _key(requirement: str, members: Iterable[str]) -> tuple[str, tuple[str, ...], str]:
    """Return a form of a requirement that does not depend on spelling: name, extras, sorted clauses.

    A requirement of one of `members` has no clauses: uv takes it from the workspace, whatever its version.
    """
    head = requirement.split(";")[0]
    extras = re.search(r"\[([^]]*)\]", head)
    clauses = re.findall(r"(?:[<>=!~]=?=?)\s*[^,;\s]+", head)
    names = tuple(sorted(e.strip() for e in extras[1].split(","))) if extras else ()
    name = requirement_name(head)
    return name, names, "" if name in members else ",".join(sorted(c.replace(" ", "") for c in clauses))


def _locked_key(entry: dict[str, Any]) -> tuple[str, tuple[str, ...], str]:
    """Return the form that `_key` gives to a requirement, for an entry of the lock."""
    clauses = ",".join(sorted(c.strip() for c in entry.get("specifier", "").split(",") if c.strip()))
    return entry["name"], tuple(sorted(entry.get("extras", []))), clauses


def stale_members(lock: dict[str, Any], asked: dict[str, list[str]]) -> list[str]:
    """Return one line per workspace member whose requirements are not those the lock was made for.

    `asked` maps a member's distribution to its requirement lines (dependencies, extras, dependency groups).
    """
    metadata = {p["name"]: p.get("metadata", {}) for p in lock["package"]}
    lines = []
    for name, requirements in asked.items():
        known = metadata.get(name, {})
        groups: Iterable[list[dict[str, Any]]] = known.get("requires-dev", {}).values()
        entries = [*known.get("requires-dist", []), *(e for group in groups for e in group)]
        difference = {_key(r, asked) for r in requirements} ^ {_locked_key(e) for e in entries}
        if difference:
            lines.append(f"{name}: {', '.join(sorted(key[0] + key[2] for key in difference))}")
    return lines


def _asked(root: Path) -> dict[str, list[str]]:
    workspace = tomllib.loads((root / "pyproject.toml").read_text())
    asked = {package.distribution: package.requirements + package.test_requirements for package in packages(root)}
    asked[workspace["project"]["name"]] = [r for group in workspace["dependency-groups"].values() for r in group]
    return asked


def problems(root: Path) -> list[str]:
    """Return what is wrong with `root/uv.lock`: places it names, members it was not made for. Needs no network."""
    text = (root / "uv.lock").read_text()
    found = [f"names a place: {place}" for place in foreign_places(text)]
    return found + [f"differs from pyproject.toml: {line}" for line in stale_members(tomllib.loads(text), _asked(root))]


def _uv_environment(environment: dict[str, str]) -> dict[str, str]:
    """Return `environment` with pip's index settings also in uv's words; pip's find-links stay out of the lock."""
    pairs = {"UV_DEFAULT_INDEX": "PIP_INDEX_URL", "UV_INDEX": "PIP_EXTRA_INDEX_URL", "SSL_CERT_FILE": "PIP_CERT"}
    taken = {uv: environment[pip] for uv, pip in pairs.items() if pip in environment and uv not in environment}
    return {**environment, **taken}


def main() -> int:
    """Run the tool; see `--help`."""
    parser = argparse.ArgumentParser(description="Write uv.lock with no host in it, or check the one that is there.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if the lock is stale or names a host"
    )
    parser.add_argument("uv_arguments", nargs="*", help="passed on to `uv lock`, after --: for example -- --upgrade")
    arguments = parser.parse_args()
    if not arguments.check:
        uv = shutil.which("uv", path=f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ.get('PATH', '')}")
        if uv is None:
            sys.exit("uv is asked for and not found. `make lint` sets up .venv, which has it.")
        command = [uv, "lock", *arguments.uv_arguments]
        subprocess.run(command, cwd=ROOT, env=_uv_environment(dict(os.environ)), check=True)
        lock = ROOT / "uv.lock"
        lock.write_text(neutral(lock.read_text()))
    found = problems(ROOT)
    for line in found:
        print(f"uv.lock {line}")
    if found:
        print("Run: .venv/bin/python tools/lock.py")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
