"""Fresh environments in a moment: third-party distributions as links to those of this environment, and no others.

Unpacking torch and transformers for each package that is tried alone would take longer than all their tests. What
belongs in an environment comes from metadata: of the workspace's packages, and of what is installed here, at the
versions of `uv.lock`. Knows no tests. Where to look next: `check_isolated.py`, which installs wheels on top.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def third_party(lines: Iterable[str], ours: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the distributions of others that requirements lead to, directly or through another.

    Args:
        lines: Requirements as written.
        ours: Distribution of the workspace -> its `[project]` table.
    """
    found: dict[str, set[str]] = {}
    todo = list(lines)
    while todo:
        one = Requirement(todo.pop())
        name, extras = canonicalize_name(one.name), {"", *one.extras}
        if (one.marker is None or one.marker.evaluate()) and not extras <= found.get(name, set()):
            found[name] = found.get(name, set()) | extras
            todo += _required(name, found[name], ours)
    return [name for name in found if name not in ours]


def _required(name: str, extras: set[str], ours: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if name in ours:
        optional = ours[name].get("optional-dependencies", {})
        own: list[str] = ours[name].get("dependencies", [])
        return [*own, *(line for extra in extras - {""} for line in optional[extra])]
    lines = [Requirement(line) for line in metadata.requires(name) or []]
    return [str(one) for one in lines if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)]


def make(place: Path, distributions: Iterable[str]) -> Path:
    """Make an environment in `place` that holds these distributions of ours, and return its interpreter.

    Raises `PackageNotFoundError` where one is not installed here.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (target,) = place.glob("lib/python*/site-packages")
    for name in distributions:
        found = metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            source, link = Path(str(found.locate_file(top))), target / top
            if top.endswith((".dist-info", ".egg-info")):  # uv does not follow links to these
                shutil.copytree(source, link)
            elif source.exists() and not link.exists():
                link.symlink_to(source)
    return place / "bin/python"
