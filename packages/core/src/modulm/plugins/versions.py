"""Interface versions: which numbers of a contract a package says it is written for, and whether ours is among them.

Said in the package's metadata, as an entry point that nobody imports: group `modulm.interface_versions`, name = the
plugins' group, value `v1` or `v1:v2`. A package that says nothing is not checked.
"""

import re

from modulm.interfaces import VERSIONS
from modulm.plugins.builtin import DISTRIBUTION

GROUP = "modulm.interface_versions"
_RANGE = re.compile(r"\s*v([0-9]+)\s*(?::\s*v([0-9]+)\s*)?")


def mismatch(group: str, stated: str, distribution: str) -> str:
    """Return why a package that states `stated` for a group's contract does not fit, or an empty string."""
    if not stated:
        return ""
    found = _RANGE.fullmatch(stated)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if first > last:
        return f"its {GROUP} {group!r} = {stated!r} is no range of versions; its author is to write 'v1' or 'v1:v2'"
    ours = VERSIONS[group]
    if first <= ours <= last:
        return ""
    wanted = f"version {first}" if first == last else f"versions {first} to {last}"
    older = distribution if last < ours else DISTRIBUTION
    return (
        f"it is written for {wanted} of contract {group}, and {DISTRIBUTION} here has version {ours}; upgrade {older}, "
        "or install versions of both that fit"
    )
