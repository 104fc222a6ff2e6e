"""Distributions that declare plugins, as their metadata on disk says: cheap to find, and all that judging them needs.

Hundreds may be installed, so each is read as text and only what is asked for is parsed. Of several copies of a
distribution the first on the path counts, as everywhere in Python. Imports no plugin and not even its parent packages.
Where to look next: `discovery.py` makes records of entry points, `doctor.py` and `lock.py` compare metadata and files.
"""

import base64
import csv
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from modulm.errors import ConfigError
from modulm.log import logger
from modulm.plugins import refs
from modulm.plugins.families import NOUNS, TEMPLATES
from modulm.plugins.policy import canonical

PREFIXES = ("vllm.", "modulm.")
_OURS = re.compile(r"^\s*\[\s*(vllm|modulm)\.", re.MULTILINE)
_HEADER = re.compile(r"^(Name|Version|Requires-Dist):[ \t]*(.*?)[ \t\r]*$", re.MULTILINE)
_BUILT = ("METADATA", "WHEEL", "entry_points.txt")
"""Files of a dist-info folder that say what was installed; the others say how, and each installer has its own."""
_log = logger("plugins")


@dataclass(frozen=True, kw_only=True)
class Installed:
    """One distribution; all but `copies` is of the copy that counts.

    Attributes:
        requires: What it needs, as written: `name>=1; marker`.
        entries: Its entry points in groups of ours.
        source: Its metadata.
        copies: Where there is metadata of that name which declares plugins of ours.
    """

    name: str
    version: str
    requires: list[str]
    entries: list[metadata.EntryPoint]
    source: metadata.Distribution
    copies: list[str]

    @classmethod
    def read(cls, source: metadata.Distribution, copies: list[str]) -> "Installed":
        """Read what counts. Raises `ValueError` or `TypeError` when that is damaged."""
        headers = _headers(source)
        found = [entry for entry in source.entry_points if entry.group.startswith(PREFIXES)]
        return cls(
            name=headers["Name"][0],
            version=headers.get("Version", [""])[0],
            requires=headers.get("Requires-Dist", []),
            entries=[entry for entry in found if entry.group != TEMPLATES],
            source=source,
            copies=copies,
        )

    @property
    def editable(self) -> str | None:
        """Where its sources are, when it was installed in editable mode."""
        try:
            about: dict[str, Any] = json.loads(self.source.read_text("direct_url.json") or "{}")
        except ValueError:
            return None
        return str(about.get("url", "")) if about.get("dir_info", {}).get("editable") else None

    @property
    def recorded(self) -> list[tuple[str, str]]:
        """(path, digest) of the files it installed, without what differs from one installer to the next."""
        rows = csv.reader(_text(self.source, "RECORD").splitlines())
        files = ((row[0], row[1] if len(row) > 1 else "") for row in rows if row)
        return [(path, digest) for path, digest in files if not _is_local(path)]

    def damaged(self, *, contents: bool) -> list[str]:
        """Return the recorded files that are gone, and with `contents` those that have changed."""
        root = str(self.source.locate_file(""))
        files = [(path, os.path.join(root, path), digest) for path, digest in self.recorded]
        return [
            path for path, file, digest in files if not os.path.exists(file) or (contents and _is_changed(file, digest))
        ]


@dataclass(kw_only=True)
class Inventory:
    """What there is on the path.

    Attributes:
        distributions: Those with plugins of ours, in the order of the path.
        unreadable: Where metadata is that declares plugins and cannot be read, with the reason.
        folders: Names of all metadata folders, ours or not: they change with every installation.
    """

    distributions: list[Installed]
    unreadable: dict[str, str]
    folders: list[str]


def find() -> Inventory:
    """Look through the path. A damaged neighbour must not hide everything else, so it is passed over with a warning."""
    copies: dict[str, dict[str, metadata.Distribution]] = {}
    unreadable: dict[str, str] = {}
    places: set[str] = set()
    for distribution in metadata.distributions():
        if (place := where(distribution)) in places:  # one folder may be on the path twice
            continue
        places.add(place)
        try:
            if name := _name_if_ours(distribution):
                copies.setdefault(canonical(name), {})[place] = distribution
        except ValueError as error:
            unreadable[place] = str(error)
    found = []
    for name, each in copies.items():
        try:
            found.append(Installed.read(_counting(name) or next(iter(each.values())), list(each)))
        except (ValueError, TypeError) as error:
            unreadable[next(iter(each))] = f"entry_points.txt or METADATA is damaged: {error}"
    for place, reason in unreadable.items():
        _log.warning("The plugins of %s are passed over: %s.", place, reason)
    return Inventory(distributions=found, unreadable=unreadable, folders=sorted(map(os.path.basename, places)))


def _name_if_ours(distribution: metadata.Distribution) -> str | None:
    if not _OURS.search(distribution.read_text("entry_points.txt") or ""):
        return None
    name = _headers(distribution).get("Name")
    if name is None:
        raise ValueError("its metadata has no name")
    return name[0]


def _counting(name: str) -> metadata.Distribution | None:
    """Return the first copy of all, also of those that declare nothing."""
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:  # its folder is called otherwise
        return None


def where(distribution: metadata.Distribution) -> str:
    """Return the path of a distribution's metadata."""
    return os.path.abspath(str(getattr(distribution, "_path", "") or distribution.locate_file("")))


@cache
def spec(module: str) -> ModuleSpec | None:
    """Return where a module is, or None. Unlike `importlib.util.find_spec` this imports no parent package."""
    parent, _, _ = module.rpartition(".")
    above = spec(parent) if parent else None
    if parent and (above is None or above.submodule_search_locations is None):
        return None
    path = above.submodule_search_locations if above else None
    answers = (finder.find_spec(module, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((found for found in answers if found is not None), None)


def module_of(reference: str) -> str:
    """Return the module that an entry point names, or an empty string when it is no reference."""
    try:
        return refs.split(reference)[0]
    except ConfigError:
        return ""


def missing(reference: str) -> str | None:
    """Return the module that an entry point names when there is no file of it."""
    module = module_of(reference)
    return module if module and spec(module) is None else None


def sources(installed: Installed) -> dict[str, Path]:
    """Return the files of the top-level packages that its plugins are in, by relative path, without bytecode."""
    tops = {module_of(entry.value).partition(".")[0] for entry in installed.entries if entry.group in NOUNS}
    return {name: path for top in sorted(tops - {""}) for name, path in _tree(top)}


def _tree(top: str) -> Iterator[tuple[str, Path]]:
    found = spec(top)
    if found is not None and found.submodule_search_locations is None and found.origin:
        yield Path(found.origin).name, Path(found.origin)
    for folder in (found and found.submodule_search_locations) or ():
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(Path(folder).parent).as_posix(), path


def _headers(distribution: metadata.Distribution) -> dict[str, list[str]]:
    """Parsing METADATA as mail takes a millisecond, most of it for the description, which stands below the headers."""
    text = _text(distribution, "METADATA") or _text(distribution, "PKG-INFO")
    found: dict[str, list[str]] = {}
    for header, value in _HEADER.findall(re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]):
        found.setdefault(header, []).append(value)
    return found


def _text(distribution: metadata.Distribution, file: str) -> str:
    try:
        return distribution.read_text(file) or ""
    except ValueError:  # not UTF-8
        return ""


def _is_local(path: str) -> bool:
    folder, _, file = path.partition("/")
    elsewhere = folder in ("..", "bin", "Scripts")  # programs are written anew, with the path of their interpreter
    return elsewhere or path.endswith(".pyc") or (folder.endswith(".dist-info") and file not in _BUILT)


def _is_changed(file: str, digest: str) -> bool:
    import hashlib  # and OpenSSL with it: only `doctor` and `lock` look at contents

    algorithm, _, expected = digest.partition("=")
    try:
        found = hashlib.new(algorithm, Path(file).read_bytes()).digest() if expected else b""
    except (OSError, ValueError):
        return True
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode() != expected
