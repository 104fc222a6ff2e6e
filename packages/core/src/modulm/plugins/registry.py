"""Registries: one per family, from names to implementations that are imported on first use.

Sources in order: `register()` in this process, core's built-in table, entry points. Registration by a plugin is a
transaction: if the plugin fails, nothing of it stays. Knows no room; what an object must be is in `families.py`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import metadata
from types import MappingProxyType
from typing import Any

from modulm.errors import Incompatible, NotInstalled, PluginError, UnknownName, did_you_mean
from modulm.log import logger
from modulm.plugins import discovery, families, loading, refs
from modulm.plugins.builtin import BUILTIN, DISTRIBUTION
from modulm.plugins.families import NOUNS
from modulm.plugins.known import KNOWN
from modulm.plugins.records import LoadRecord

_log = logger("plugins")


@dataclass(frozen=True, kw_only=True)
class Registration:
    """What `register()` was given: a reference or an object, by which plugin (None: the program itself)."""

    target: Any
    owner: LoadRecord | None
    override: bool

    def owned_by(self, record: LoadRecord) -> bool:
        """Whether this plugin made it, be it in this process or, before a fork, in the parent."""
        return self.owner is not None and (self.owner.group, self.owner.qualified) == (record.group, record.qualified)


@dataclass(kw_only=True)
class _Journal:
    """What a plugin has registered so far, with what was there before, to be able to undo it."""

    owner: LoadRecord
    entries: list[tuple["Registry", str, Registration | None]] = field(default_factory=list)


_journal: ContextVar[_Journal | None] = ContextVar("modulm_registering", default=None)


class Registry:
    """The implementations of one family. Made by `registry()`."""

    def __init__(self, family: str) -> None:
        self.family = family
        self._noun = NOUNS[family]
        self._registered: dict[str, Registration] = {}

    def register(self, name: str, target: Any, *, override: bool = False) -> None:
        """Add an implementation for this process.

        Args:
            name: The name it is chosen by.
            target: A reference (`module:Class` or `module.Class`), imported when it is chosen, or the object itself.
            override: Replace an implementation of the same name; it is logged, and shown in the load records.

        Raises:
            ConfigError: The string is no reference.
            Incompatible: The name is taken and `override` is not set.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"The name of a {self._noun.lower()} must be a non-empty string, not {name!r}.")
        if isinstance(target, str):
            refs.split(target)
        journal = _journal.get()
        owner = journal.owner if journal else None
        before = self._registered.get(name)
        taken = self._taken(name, target, owner)
        if taken and not override:
            raise Incompatible(
                f"{self._noun} {name!r} cannot be registered: the name is taken by {taken}. Choose another name, or "
                f"replace it with register({name!r}, ..., override=True)."
            )
        if journal:
            journal.entries.append((self, name, before))
        self._registered[name] = Registration(
            target=target, owner=owner, override=bool(taken or (before and before.override))
        )
        if taken:
            who = owner.qualified if owner else "this program"
            _log.info("%s %r of %s is overridden by %s.", self._noun, name, taken, who)

    def get(self, name: str) -> Any:
        """Return the implementation called `name` (or `distribution:name`), importing it.

        Raises:
            UnknownName: Nothing has that name; the message lists what has.
            NotInstalled: A package that is known to provide it is missing; the message says how to install it.
            Broken: It failed to import; the cause is chained.
            Incompatible: It is not what the family asks for, or several packages provide the name.
            ConfigError: VLLM_PLUGINS turned it off.
        """
        if name in self._registered:
            return self._explicit(name, self._registered[name])
        built_in = self._built_in()
        own = name.removeprefix(f"{DISTRIBUTION}:")
        if own in built_in:
            asked = f"{self._noun} {own!r} (built in)"
            return self._checked(asked, refs.resolve(built_in[own], asked))
        record = discovery.find(self.family, name)
        if record is None:
            raise self._missing(name)
        return loading.checked(record, loading.load(record))

    def names(self) -> list[str]:
        """Return the names that can be asked for, sorted; those that are turned off or shadowed are left out."""
        return sorted(self.references)

    @property
    def references(self) -> Mapping[str, Any]:
        """A read-only view: name -> reference or registered object. Imports nothing."""
        declared = {record.name: record.value for record in discovery.records(self.family) if record.usable}
        explicit = {name: registration.target for name, registration in self._registered.items()}
        return MappingProxyType({**declared, **self._built_in(), **explicit})

    def registrations(self) -> Mapping[str, Registration]:
        """A read-only view of what was registered in this process."""
        return MappingProxyType(self._registered)

    def __contains__(self, name: object) -> bool:
        return name in self.references

    def restore(self, name: str, before: Registration | None) -> None:
        """Undo a registration: put back what was there before it, or nothing."""
        if before is None:
            self._registered.pop(name, None)
        else:
            self._registered[name] = before

    def _explicit(self, name: str, registration: Registration) -> Any:
        who = registration.owner.qualified if registration.owner else "this program"
        asked = f"{self._noun} {name!r} (registered by {who})"
        target = registration.target
        return self._checked(asked, refs.resolve(target, asked) if isinstance(target, str) else target)

    def _checked(self, asked: str, found: Any) -> Any:
        return families.check(self.family, asked, found)

    def _built_in(self) -> Mapping[str, str]:
        table = BUILTIN.get(self.family, {})
        if isinstance(table, str):
            table = refs.resolve(table, f"The table of {self.family}")
        return table

    def _taken(self, name: str, target: Any, owner: LoadRecord | None) -> str:
        """Say who has the name already, or return an empty string when registering it replaces nothing."""
        before = self._registered.get(name)
        if before is not None:
            again = before.target is target or (isinstance(target, str) and before.target == target)
            if again or (owner is not None and before.owned_by(owner)):
                return ""  # plugins may register once more, in a forked child for example
            return before.owner.qualified if before.owner else "this program"
        if name in self._built_in():
            return f"{DISTRIBUTION} (built in)"
        for record in discovery.records(self.family):
            mine = owner is not None and owner.distribution == record.distribution
            if record.usable and record.name == name and not mine:
                return record.origin
        return ""

    def _missing(self, name: str) -> PluginError:
        names = self.names()
        known = KNOWN.get(self.family, {})
        if name in known:
            return NotInstalled(f"{self._noun} {name!r} is not installed. {how_to_install(known[name])}")
        hint = did_you_mean(name, [*names, *known]) or " `modulm plugins list` shows where each comes from."
        return UnknownName(f"{self._noun} {name!r} is unknown. Installed: {', '.join(names) or 'none'}.{hint}")


def how_to_install(distribution: str) -> str:
    """Say, in sentences that end in a command, where a plugin that is not there comes from."""
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return f"It comes with {distribution}: pip install {distribution}."
    return (
        f"It comes with {distribution}, but version {version}, which is installed, does not declare it: "
        f"pip install --upgrade --force-reinstall {distribution}."
    )


_registries: dict[str, Registry] = {}


def registry(family: str) -> Registry:
    """Return the registry of a family such as "modulm.attention". Raises `ConfigError` for an unknown one."""
    if family not in _registries:
        families.need_family(family)
        _registries[family] = Registry(family)
    return _registries[family]


@contextmanager
def transaction(record: LoadRecord) -> Iterator[None]:
    """Attribute what is registered inside to `record`; if the block raises, take it all back."""
    journal = _Journal(owner=record)
    token = _journal.set(journal)
    try:
        yield
    except BaseException:
        for owner_registry, name, before in reversed(journal.entries):
            owner_registry.restore(name, before)
        _forget(record)
        raise
    finally:
        _journal.reset(token)
        record.registered = [
            f"{family}:{name}{' (override)' if registration.override else ''}"
            for family, held in _registries.items()
            for name, registration in held.registrations().items()
            if registration.owned_by(record)
        ]


def _forget(record: LoadRecord) -> None:
    """Drop what a plugin registered before a fork: it failed here, so nothing of it may stay."""
    for held in _registries.values():
        for name, registration in list(held.registrations().items()):
            if registration.owned_by(record):
                held.restore(name, None)


def reset() -> None:
    """Forget every registration (tests)."""
    _registries.clear()
