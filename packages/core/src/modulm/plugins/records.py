"""Load records: one per entry point (or parser file), saying where it comes from and what became of it.

Also holds the rule for failures: what is merely installed and broken is recorded and warned of; under
`MODULM_STRICT_PLUGINS=1` it is raised. Knows neither metadata nor registries.
"""

import os
from dataclasses import dataclass, field

from modulm.errors import PluginError
from modulm.log import logger
from modulm.plugins.families import NOUNS

AVAILABLE = "available"
BUILT_IN = "built in"
DISABLED = "disabled"
NEEDS_NAMING = "needs naming"
SHADOWED = "shadowed"
SKIPPED = "skipped"
LOADED = "loaded"
INACTIVE = "inactive"
BROKEN = "broken"
INCOMPATIBLE = "incompatible"
REFUSED = "refused"

_log = logger("plugins")


@dataclass(kw_only=True)
class LoadRecord:
    """What is known of one plugin.

    Attributes:
        group: Entry-point group, or the option that named a parser file.
        value: The reference as declared, `module:attribute`.
        state: "available" (may be loaded, not yet needed), "loaded", "inactive" (loaded, says it is not for here),
            "broken", "incompatible" (written for other versions of the contract, so never imported), "disabled",
            "needs naming", "shadowed" (another has its name), "refused" (by the plugins lock) or "skipped"; "built in"
            for core's own.
        reason: Why it is in that state, where that needs saying.
        seconds: Time taken by import and call; None before loading.
        interface_versions: Those of the contract that the package says it is written for: "v1", "v1:v2"; empty: not
            said.
        registered: What a general plugin registered: "family:name", with " (override)" where it replaced another.
    """

    group: str
    name: str
    value: str
    distribution: str
    version: str
    state: str = AVAILABLE
    reason: str = ""
    seconds: float | None = None
    registered: list[str] = field(default_factory=list)
    interface_versions: str = ""

    @property
    def origin(self) -> str:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def qualified(self) -> str:
        """`distribution:name`: accepted as a name everywhere, and never ambiguous."""
        return f"{self.distribution}:{self.name}"

    @property
    def usable(self) -> bool:
        """Whether nothing keeps it from being loaded (it may still turn out broken)."""
        return self.state in (AVAILABLE, LOADED, INACTIVE, BROKEN)

    @property
    def asked(self) -> str:
        """The start of a message about it: "Attention backend 'flash' (modulm-x 1.0)"."""
        return f"{NOUNS.get(self.group, 'Plugin')} {self.name!r} ({self.origin})"


def is_strict() -> bool:
    """Whether `MODULM_STRICT_PLUGINS` turns every plugin failure into an error."""
    return os.environ.get("MODULM_STRICT_PLUGINS", "").strip().lower() not in ("", "0", "false", "no")


def leave_out(record: LoadRecord, error: PluginError) -> None:
    """Record the failure of a plugin that is merely installed, and warn with its traceback; raise it if strict."""
    record.state, record.reason = BROKEN, str(error)
    if is_strict():
        raise error
    _log.warning("%s It is left out. MODULM_STRICT_PLUGINS=1 makes this an error.", error, exc_info=error)
