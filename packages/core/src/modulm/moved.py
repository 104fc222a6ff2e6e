"""Modules that plugins may import and that have moved: the old name goes on leading to the module, with a warning.

An entry stays for two minor versions after the move; then a test asks for its removal. Only names in the table are ever
looked at here, and a move within a package takes what is below it along. Knows no module.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple


class Moved(NamedTuple):
    """Where a module is now, and the version of modulm-core in which its old name ends."""

    to: str
    until: str


MOVED: dict[str, Moved] = {}
"""By old name; none so far."""


class Finder:
    """Finds old names; both a finder and a loader of importlib's."""

    def __init__(self, table: Mapping[str, Moved]) -> None:
        self._table = table

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        known = any(name == old or name.startswith(f"{old}.") for old in self._table)
        return ModuleSpec(name, self) if known else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """See `importlib.abc.Loader`: what importlib makes is only a place-holder."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module itself in the place-holder's place."""
        name = module.__name__
        old = max((each for each in self._table if name == each or name.startswith(f"{each}.")), key=len)
        new = self._table[old].to + name.removeprefix(old)
        warnings.warn(
            f"Module {name!r} is now {new!r}; the old name ends with modulm-core {self._table[old].until}. Import the "
            "new one.",
            DeprecationWarning,
            stacklevel=2,
        )
        sys.modules[name] = import_module(new)


def install() -> None:
    """Let old names be found, before anything else is; called when `modulm` is imported."""
    if MOVED:
        sys.meta_path.insert(0, Finder(MOVED))
