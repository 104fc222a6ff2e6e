"""What importing and calling each plugin came to when `modulm plugins doctor` last tried it, in a child process.

Kept in the user's cache folder, and good only as long as nothing changes that it depends on: the set of installed
distributions, Python, the machine, variables that plugins may read, and the files beside the plugin's own module.
Imports no plugin; who tries them is `cli/plugins_probe.py`.
"""

import contextlib
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from modulm.config import cache_folder
from modulm.digests import hashed
from modulm.plugins import discovery, installed
from modulm.plugins import records as state
from modulm.plugins.families import FAMILIES
from modulm.plugins.records import LoadRecord

SLOW_S = 0.5
"""What a hook may take to import and call: every process that loads it waits."""
_VARIABLES = ("VLLM_", "MODULM_", "CUDA_", "HIP_", "ROCR_")
_NOT_THESE = ("MODULM_CACHE_DIR", "MODULM_LOG_LEVEL", "MODULM_STRICT_PLUGINS", "MODULM_DISABLE_PLUGINS", "VLLM_PLUGINS")


@dataclass(kw_only=True)
class Verdict:
    """What became of one plugin.

    Attributes:
        state, reason, seconds, registered: As in a load record.
        torch: Whether it imported torch, or something that did.
        device: Whether it initialised a GPU.
        routes, metrics: What it adds to a server: "GET /path", and names in prometheus_client's default registry.
    """

    state: str
    reason: str = ""
    seconds: float = 0.0
    torch: bool = False
    device: bool = False
    registered: list[str] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)


def key(record: LoadRecord) -> str:
    """Return the name under which a plugin's verdict is kept."""
    return f"{record.group}|{record.distribution}|{record.name}|{record.value}"


def is_well(record: LoadRecord, verdict: Verdict) -> bool:
    """Whether there is nothing to say of a plugin. Hooks must be quick and light; a family's members are chosen."""
    light = record.group in FAMILIES or not (verdict.torch or verdict.device or verdict.seconds > SLOW_S)
    return light and verdict.state in (state.LOADED, state.INACTIVE)


@dataclass(kw_only=True)
class Memory:
    """What is still good of what was found out: verdicts by key, and requirements with what is wrong with them here."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    requirements: dict[str, str] = field(default_factory=dict)


def recall() -> Memory:
    """Read what the last process remembered; empty when anything has changed since."""
    try:
        held = json.loads(_file().read_text(encoding="utf-8"))
        if held["environment"] != _environment():
            return Memory()
        files = _Files()
        verdicts = {
            name: Verdict(**found["verdict"])
            for name, found in held["verdicts"].items()
            if found["files"] == files.state(found["place"])
        }
        return Memory(verdicts=verdicts, requirements=held["requirements"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Memory()


def remember(memory: Memory) -> None:
    """Keep it for the next process. A cache folder that cannot be written is no error."""
    import tempfile  # not for those who only read

    files, kept = _Files(), {}
    for record in discovery.records():
        if verdict := memory.verdicts.get(key(record)):
            place = _place(record.value)
            kept[key(record)] = {"verdict": asdict(verdict), "place": place, "files": files.state(place)}
    held = {"environment": _environment(), "verdicts": kept, "requirements": memory.requirements}
    with contextlib.suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=_file().parent, delete=False, encoding="utf-8") as file:
            json.dump(held, file)
        os.replace(file.name, _file())


def _file() -> Path:
    return cache_folder() / "plugins" / f"verdicts-{hashed(sys.prefix.encode()).hexdigest()[:12]}.json"


def _environment() -> str:
    variables = {
        name: value for name, value in os.environ.items() if name.startswith(_VARIABLES) and name not in _NOT_THESE
    }
    parts = [sys.version, platform.node(), sorted(variables.items()), discovery.inventory().folders]
    return hashed(json.dumps(parts).encode()).hexdigest()


def _place(reference: str) -> str:
    """Return the folder that a reference's module is in, or its file where it is no part of a package."""
    module = installed.module_of(reference)
    found = installed.spec(module) if module else None
    if found is None or not found.origin:
        return ""
    alone = "." not in found.name and found.submodule_search_locations is None
    return found.origin if alone else os.path.dirname(found.origin)


class _Files:
    """Names, sizes and times of the files of folders, each looked at once."""

    def __init__(self) -> None:
        self._seen: dict[str, list[list[Any]]] = {}

    def state(self, place: str) -> list[list[Any]]:
        """Return them; none where there is no such folder or file."""
        if place not in self._seen:
            try:
                files = (
                    [place] if os.path.isfile(place) else [entry.path for entry in os.scandir(place) if entry.is_file()]
                )
                states = [(os.path.basename(file), os.stat(file)) for file in sorted(files)]
                self._seen[place] = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in states]
            except OSError:
                self._seen[place] = []
        return self._seen[place]
