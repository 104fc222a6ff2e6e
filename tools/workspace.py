"""The workspace as data: its root, its packages and what each package's `pyproject.toml` says.

Every tool beside this file reads the tree through it. Standard library only, since set-up runs before anything is
installed. It judges nothing: `check_packages.py` does.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Package:
    """One folder under `packages/`.

    Attributes:
        folder: The folder's name, such as `quant-gguf`.
        path: The folder.
        pyproject: Its `pyproject.toml`, parsed.
    """

    folder: str
    path: Path
    pyproject: dict[str, Any]

    @property
    def project(self) -> dict[str, Any]:
        """The `[project]` table."""
        table: dict[str, Any] = self.pyproject.get("project", {})
        return table

    @property
    def distribution(self) -> str:
        """The name it is published under."""
        return str(self.project.get("name", ""))

    @property
    def version(self) -> str:
        """The version in its metadata."""
        return str(self.project.get("version", ""))

    @property
    def requirements(self) -> list[str]:
        """Its dependencies and those of its extras, as written."""
        extras = self.project.get("optional-dependencies", {}).values()
        return [*self.project.get("dependencies", []), *(line for extra in extras for line in extra)]

    @property
    def test_requirements(self) -> list[str]:
        """What its own tests need besides, as written: its dependency group `test`."""
        lines: list[str] = self.pyproject.get("dependency-groups", {}).get("test", [])
        return lines

    @property
    def is_native(self) -> bool:
        """Whether it has to be compiled."""
        return (self.path / "CMakeLists.txt").exists()

    @property
    def entry_points(self) -> dict[str, dict[str, str]]:
        """Group -> name -> `module:attribute`."""
        groups: dict[str, dict[str, str]] = self.project.get("entry-points", {})
        return groups


def packages(root: Path = ROOT) -> list[Package]:
    """Return every package of the workspace under `root`, sorted by folder."""
    files = sorted((root / "packages").glob("*/pyproject.toml"))
    return [Package(folder=f.parent.name, path=f.parent, pyproject=tomllib.loads(f.read_text())) for f in files]


def expected_distribution(folder: str) -> str:
    """Return the distribution name that the naming rule gives to `folder`."""
    return "modulm" if folder == "modulm" else f"modulm-{folder}"


def expected_import(folder: str) -> str | None:
    """Return the import package that the naming rule gives to `folder`; None for the umbrella, which has no code."""
    if folder == "modulm":
        return None
    return "modulm" if folder == "core" else "modulm_" + folder.replace("-", "_")


def requirement_name(requirement: str) -> str:
    """Return the normalised distribution name at the start of a requirement line."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    if match is None:
        raise ValueError(f"{requirement!r} is not a requirement: it does not start with a name.")
    return re.sub(r"[-_.]+", "-", match[1]).lower().rstrip("-")


def locked_versions(root: Path = ROOT) -> dict[str, set[str]]:
    """Return every distribution in `uv.lock` with its version, or versions where they depend on the Python version."""
    versions: dict[str, set[str]] = {}
    for package in tomllib.loads((root / "uv.lock").read_text())["package"]:
        versions.setdefault(package["name"], set()).add(package.get("version", ""))
    return versions
