"""Distributions that declare plugins, as their metadata on disk says: cheap to find, and all that judging them needs.

Hundreds may be installed, so each is read as text and only what is asked for is parsed. Of several copies of a
distribution the first on the path counts, as everywhere in Python. Imports no plugin and not even its parent packages.
Where to look next: `discovery.py` makes records of entry points, `doctor.py` and `lock.py` compare metadata and files.
"""

import base64
import csv
import hashlib
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
    """One distribution; its name, version and requirements are those of the copy that counts.

    Attributes:
        requires: What it needs, as written: `name>=1; marker`.
        source: The copy that counts.
        copies: Every copy that declares plugins of ours.
    """

    name: str
    version: str
    requires: list[str]
    source: metadata.Distribution
    copies: list[metadata.Distribution]

    @property
    def entries(self) -> list[metadata.EntryPoint]:
        """Its entry points in groups of ours."""
        found = [entry for entry in self.source.entry_points if entry.group.startswith(PREFIXES)]
        return [entry for entry in found if entry.group != TEMPLATES]

    @property
    def editable(self) -> str | None:
        """Where its sources are, when it was installed in editable mode."""
        about: dict[str, Any] = json.loads(self.source.read_text("direct_url.json") or "{}")
        return str(about.get("url", "")) if about.get("dir_info", {}).get("editable") else None

    @property
    def recorded(self) -> list[tuple[str, str]]:
        """(path, digest) of the files it installed, without what differs from one installer to the next."""
        rows = csv.reader((self.source.read_text("RECORD") or "").splitlines())
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
        unreadable: Where metadata is that declares plugins and has no name.
        folders: Names of all metadata folders, ours or not: they change with every installation.
    """

    distributions: list[Installed]
    unreadable: list[str]
    folders: list[str]


def find() -> Inventory:
    """Look through the path."""
    copies: dict[str, list[metadata.Distribution]] = {}
    unreadable, folders, headers, seen = [], [], {}, set()
    for distribution in metadata.distributions():
        place = where(distribution)
        if place in seen:  # one folder may be on the path twice
            continue
        seen.add(place)
        folders.append(place.rpartition("/")[2])
        if _OURS.search(distribution.read_text("entry_points.txt") or ""):
            headers[place] = _headers(distribution)
            if "Name" in headers[place]:
                copies.setdefault(canonical(headers[place]["Name"][0]), []).append(distribution)
            else:  # a damaged neighbour must not hide everything else
                _log.warning("%s declares plugins and has no name: it is passed over.", place)
                unreadable.append(place)
    found = []
    for name, each in copies.items():
        source = metadata.distribution(name)  # of all copies, also of those that declare nothing
        own = headers.get(where(source)) or _headers(source)
        version, requires = own.get("Version", [""])[0], own.get("Requires-Dist", [])
        found.append(Installed(name=own["Name"][0], version=version, requires=requires, source=source, copies=each))
    return Inventory(distributions=found, unreadable=unreadable, folders=sorted(folders))


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


def missing(reference: str) -> str | None:
    """Return the module that an entry point names when there is no file of it."""
    try:
        module, _ = refs.split(reference)
    except ConfigError:
        return None
    return None if spec(module) else module


def sources(installed: Installed) -> dict[str, Path]:
    """Return the files of the top-level packages that its plugins are in, by relative path, without bytecode."""
    modules = {entry.value.partition(":")[0].strip() for entry in installed.entries if entry.group in NOUNS}
    return {name: path for top in sorted({module.partition(".")[0] for module in modules}) for name, path in _tree(top)}


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
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    found: dict[str, list[str]] = {}
    for header, value in _HEADER.findall(re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]):
        found.setdefault(header, []).append(value)
    return found


def _is_local(path: str) -> bool:
    folder, _, file = path.partition("/")
    elsewhere = folder in ("..", "bin", "Scripts")  # programs are written anew, with the path of their interpreter
    return elsewhere or path.endswith(".pyc") or (folder.endswith(".dist-info") and file not in _BUILT)


def _is_changed(file: str, digest: str) -> bool:
    algorithm, _, expected = digest.partition("=")
    try:
        found = hashlib.new(algorithm, Path(file).read_bytes()).digest() if expected else b""
    except (OSError, ValueError):
        return True
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode() != expected
