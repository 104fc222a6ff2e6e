"""Prepare a release: versions, ranges, changelogs and tags, from the fragments in `changes/`.

A fragment is `changes/<folder>.<short-title>.<feature|fix|breaking>.md`: one sentence for users. Each package is
released by itself. A version that its CHANGELOG does not have yet is released as it stands; any other is raised: while
it is 0.x, `breaking` raises the middle number and the rest the last one; from 1.0 on, semantic versioning. Packages
whose range of a raised package would leave it out are released with it. Changes files only; it prints what to tag.
"""

import argparse
import re
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from workspace import ROOT, Package, packages, requirement_name

KINDS = {"breaking": "Breaking", "feature": "Added", "fix": "Fixed"}
MAX_CHARACTERS = 400


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """One change note."""

    path: Path
    folder: str
    kind: str
    text: str


@dataclass(kw_only=True)
class Release:
    """What will happen to one package: its next version, its notes, and requirement lines to replace."""

    package: Package
    version: str
    notes: dict[str, list[str]] = field(default_factory=dict)
    requirements: dict[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """The git tag of this release."""
        return f"{self.package.distribution}-v{self.version}"


def fragments(root: Path) -> tuple[list[Fragment], list[str]]:
    """Return the fragments under `root/changes`, and a line for each file there that is not one."""
    folders = {package.folder for package in packages(root)}
    found, wrong = [], []
    for path in sorted((root / "changes").glob("*")):
        if path.name == "README.md":
            continue
        match = re.fullmatch(r"(?P<folder>[a-z0-9-]+)\.[a-z0-9-]+\.(?P<kind>[a-z]+)\.md", path.name)
        text = " ".join(path.read_text().split())
        if match is None or match["folder"] not in folders or match["kind"] not in KINDS:
            wrong.append(
                f"{path.name} is not <folder>.<short-title>.<kind>.md; folders: {', '.join(sorted(folders))}; "
                f"kinds: {', '.join(KINDS)}"
            )
        elif not text.endswith(".") or len(text) > MAX_CHARACTERS:
            wrong.append(f"{path.name} is not a sentence of at most {MAX_CHARACTERS} characters")
        else:
            found.append(Fragment(path=path, folder=match["folder"], kind=match["kind"], text=text))
    return found, wrong


def next_version(version: str, kinds: set[str]) -> str:
    """Return the version after `version` for changes of `kinds`."""
    major, minor, patch = map(int, version.split("."))
    if major == 0:
        return f"0.{minor + 1}.0" if "breaking" in kinds else f"0.{minor}.{patch + 1}"
    if "breaking" in kinds:
        return f"{major + 1}.0.0"
    return f"{major}.{minor + 1}.0" if "feature" in kinds else f"{major}.{minor}.{patch + 1}"


def moved_range(requirement: str, version: str) -> str:
    """Return the requirement line with the range that starts at `version` and ends before its next minor version."""
    major, minor, patch = map(int, version.split("."))
    head = re.split(r"[<>=!~ ;]", requirement, maxsplit=1)[0]
    marker = f" ;{requirement.split(';', 1)[1]}" if ";" in requirement else ""
    floor = f"{major}.{minor}" + (f".{patch}" if patch else "")
    return f"{head}>={floor},<{major}.{minor + 1}{marker}"


def _first(package: Package) -> bool:
    heading = rf"^## {re.escape(package.version)}\b"
    return re.search(heading, (package.path / "CHANGELOG.md").read_text(), re.MULTILINE) is None


def plan(root: Path, found: list[Fragment]) -> list[Release]:
    """Return the releases that `found` makes necessary, dependents included, sorted by folder."""
    todo: dict[str, Release] = {}
    ours = packages(root)
    for package in ours:
        mine = [fragment for fragment in found if fragment.folder == package.folder]
        if mine:
            raised = next_version(package.version, {fragment.kind for fragment in mine})
            release = Release(package=package, version=package.version if _first(package) else raised)
            for fragment in mine:
                release.notes.setdefault(KINDS[fragment.kind], []).append(fragment.text)
            todo[package.distribution] = release
    settled = False
    while not settled:
        settled = not any(_follow(package, todo) for package in ours)
    return sorted(todo.values(), key=lambda release: release.package.folder)


def _follow(package: Package, todo: dict[str, Release]) -> bool:
    """Move the ranges of `package` to what is in `todo`, releasing it if it must be; return whether any moved."""
    moved = False
    for line in package.requirements:
        other = todo.get(requirement_name(line))
        mine = todo.get(package.distribution)
        if other is None or (mine and line in mine.requirements):
            continue
        wanted = moved_range(line, other.version)
        left_out = wanted.split("<")[-1] != line.replace(" ", "").split("<")[-1]
        if wanted == line or not (mine or left_out):
            continue
        if mine is None:
            version = package.version if _first(package) else next_version(package.version, {"fix"})
            mine = todo[package.distribution] = Release(package=package, version=version)
        mine.requirements[line] = wanted
        mine.notes.setdefault("Changed", []).append(f"Requires {wanted}.")
        moved = True
    return moved


def changelog(text: str, release: Release, day: str) -> str:
    """Return the changelog `text` with the release's section below `## Unreleased`."""
    blocks = [f"## {release.version} - {day}"]
    blocks += [f"### {head}\n\n" + "\n".join(f"- {note}" for note in notes) for head, notes in release.notes.items()]
    before, marker, after = text.partition("## Unreleased\n")
    if not marker:
        raise ValueError(f"{release.package.folder}/CHANGELOG.md has no line '## Unreleased' to write below.")
    return before + marker + "\n" + "\n\n".join(blocks) + "\n" + after


def write(release: Release, day: str) -> None:
    """Change the package's `pyproject.toml` and `CHANGELOG.md` as the release says."""
    file = release.package.path / "pyproject.toml"
    text = re.sub(r'(?m)^version = "[^"]*"', f'version = "{release.version}"', file.read_text(), count=1)
    for old, new in release.requirements.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    file.write_text(text)
    notes = release.package.path / "CHANGELOG.md"
    notes.write_text(changelog(notes.read_text(), release, day))


def main(root: Path = ROOT) -> int:
    """Run the tool; see `--help`."""
    parser = argparse.ArgumentParser(description="Raise versions and write changelogs from the fragments in changes/.")
    parser.add_argument("--dry-run", action="store_true", help="show what would happen and change nothing")
    parser.add_argument("--check", action="store_true", help="only check that the fragments are well formed")
    arguments = parser.parse_args()
    found, wrong = fragments(root)
    if wrong or arguments.check:
        print("\n".join(wrong or [f"{len(found)} change notes are well formed"]))
        return 1 if wrong else 0
    releases = plan(root, found)
    for release in releases:
        print(f"{release.package.distribution}: {release.package.version} -> {release.version}")
        for head, notes in release.notes.items():
            print("".join(f"  {head}: {note}\n" for note in notes), end="")
        if not arguments.dry_run:
            write(release, datetime.now(UTC).date().isoformat())
    if not arguments.dry_run:
        for fragment in found:
            fragment.path.unlink()
    if releases:
        print("Next: tools/lock.py, make test, commit, then tag:")
    for release in releases:
        print(f"git tag {release.tag}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
