"""What a plugin's NAME becomes: a distribution, an import package, the name it is chosen by, the stem of its classes.

`modulm-quant-awq` of kind quantization is distribution `modulm-quant-awq`, imported as `modulm_quant_awq`, chosen as
`awq`, with a class `AwqScheme`. Knows names only, no files.
"""

import keyword
import re
import sys
from dataclasses import dataclass

from modulm.errors import ConfigError
from modulm.plugins.builtin import BUILTIN, PLATFORMS
from modulm.plugins.families import PLATFORM
from modulm_testkit.templates.kinds import Kind

_DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""Source: the specification of core metadata, field Name."""
_TAKEN = frozenset({*sys.stdlib_module_names, "modulm", "modulm_testkit", "numpy", "torch", "vllm"})


@dataclass(frozen=True, kw_only=True)
class Names:
    """One plugin under its several names."""

    distribution: str
    package: str
    name: str
    camel: str


def names(kind: Kind, asked: str) -> Names:
    """Return the names of plugin `asked`. Raises `ConfigError` when no distribution, module or class can have one."""
    if not _DISTRIBUTION.fullmatch(asked):
        raise _refused(
            asked, "a package's name is made of letters, digits, '-', '_' and '.', with no mark at either end"
        )
    package = re.sub(r"[-_.]+", "_", asked).lower()
    if not package.isidentifier() or keyword.iskeyword(package):
        raise _refused(asked, f"it would be imported as {package!r}, which is no name in Python")
    if package in _TAKEN:
        raise _refused(asked, f"it would be imported as {package!r}, and there is such a module already")
    name = _short(package, kind.prefix)
    built_in = PLATFORMS if kind.group == PLATFORM else BUILTIN.get(kind.group, {})
    if isinstance(built_in, dict) and name in built_in:
        raise _refused(asked, f"it would be chosen as {name!r}, which is core's own; there are: {', '.join(built_in)}")
    camel = "".join(word[:1].upper() + word[1:] for word in name.split("_"))
    camel = camel.removesuffix(kind.noun) or camel
    return Names(distribution=asked, package=package, name=name, camel=camel)


def _short(package: str, prefix: str) -> str:
    """Take off `modulm_` and the kind's prefix, where a name is left."""
    for start in ("modulm_", f"{prefix}_"):
        rest = package.removeprefix(start)
        package = rest if rest.isidentifier() and not keyword.iskeyword(rest) else package
    return package


def _refused(asked: str, why: str) -> ConfigError:
    return ConfigError(f"NAME {asked!r} is refused: {why}. Give one such as 'my-plugin'.")
