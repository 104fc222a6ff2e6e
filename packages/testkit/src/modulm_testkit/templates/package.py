"""Fills in a kind's templates and writes the package.

A template is a file `NAME.tmpl` of `string.Template`; in its path `package` stands for the import package under
`src/`, and a leading `dot-` for a dot. Knows files and placeholders; kinds and names are in the modules of that name.
"""

import datetime
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from string import Template

from modulm.errors import ConfigError, did_you_mean
from modulm.interfaces import VERSIONS
from modulm_testkit.templates.kinds import KINDS, Kind
from modulm_testkit.templates.names import Names, names

_FILES = files("modulm_testkit.templates") / "files"
_SUFFIX = ".tmpl"
_TOP = PurePosixPath()


class Templates:
    """What core asks for through the entry-point group `modulm.templates`."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """Every kind with one line about it."""
        return {kind: one.description for kind, one in KINDS.items()}

    @property
    def licenses(self) -> tuple[str, ...]:
        """The licences to choose from, by their SPDX names; the first is the default."""
        return tuple(sorted(each.name.removesuffix(_SUFFIX) for each in (_FILES / "licenses").iterdir()))

    def write(self, kind: str, name: str, folder: Path, license: str) -> list[Path]:
        """Write the package into `folder`, which may exist if it is empty, and return the files.

        Raises `ConfigError`, before anything is written, for a kind, name, licence or folder that cannot be.
        """
        one = _kind(kind)
        if license not in self.licenses:
            hint = did_you_mean(license, self.licenses)
            there = ", ".join(self.licenses)
            raise ConfigError(f"license={license!r} is unknown.{hint} There are: {there}. Change the file afterwards.")
        contents = rendered(kind, one, names(one, name), license)
        _need_empty(folder)
        for path, text in contents.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return [folder / path for path in contents]


def rendered(kind: str, one: Kind, named: Names, license: str) -> dict[PurePosixPath, str]:
    """Return every file of the package by its path."""
    values = _values(kind, one, named, license)
    values["develop"] = _fill(_FILES / "develop.md.tmpl", values)
    found = {PurePosixPath("LICENSE"): _fill(_FILES / "licenses" / f"{license}{_SUFFIX}", values)}
    for folder in (_FILES / "common", _FILES / kind):
        for template, path in _walk(folder):
            found[_target(path, named.package)] = _fill(template, values)
    return dict(sorted(found.items()))


def _kind(kind: str) -> Kind:
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS)
        raise ConfigError(f"KIND {kind!r} is unknown.{hint} There are: {', '.join(KINDS)}.")
    return KINDS[kind]


def _need_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists():
        what = "there are files in it" if folder.is_dir() else "it is a file"
        raise ConfigError(f"Folder {str(folder)!r} is refused: {what}. Name a new or empty one with --path.")


def _values(kind: str, one: Kind, named: Names, license: str) -> dict[str, str]:
    values = {
        "distribution": named.distribution,
        "package": named.package,
        "name": named.name,
        "camel": named.camel,
        "upper": named.name.upper(),
        "kind": kind,
        "license": license,
        "year": str(datetime.date.today().year),
        "group": one.group,
        "interface": f"v{VERSIONS[one.group]}:v{VERSIONS[one.group]}",
        "description": one.description,
        "testkit": _range("modulm-testkit", one.kit),
    }
    requirements = [_range("modulm-core", one.core), *one.requires]
    values["dependencies"] = "\n".join(f'  "{line}",' for line in sorted(requirements))
    values["entry"] = f"{named.package}.{Template(one.entry).substitute(values)}"
    values["entry_name"] = Template(one.entry_name).substitute(values)
    return values


def _range(distribution: str, required: str = "") -> str:
    """Return the requirement for the minor version that is installed here."""
    major, minor = metadata.version(distribution).split(".")[:2]
    return f"{required or distribution}>={major}.{minor},<{major}.{int(minor) + 1}"


def _walk(folder: Traversable, path: PurePosixPath = _TOP) -> Iterator[tuple[Traversable, PurePosixPath]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _walk(each, path / each.name)
        elif each.name.endswith(_SUFFIX):
            yield each, path / each.name


def _target(path: PurePosixPath, package: str) -> PurePosixPath:
    parts = [part.removesuffix(_SUFFIX) for part in path.parts]
    parts = [f".{part.removeprefix('dot-')}" if part.startswith("dot-") else part for part in parts]
    return PurePosixPath(*(["src", package, *parts[1:]] if parts[0] == "package" else parts))


def _fill(template: Traversable, values: Mapping[str, str]) -> str:
    return Template(template.read_text(encoding="utf-8")).substitute(values)
