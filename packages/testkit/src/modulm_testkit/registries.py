"""The state that plugins of a process share, made as if the process had just started."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

VARIABLES = ("VLLM_PLUGINS", "VLLM_TARGET_DEVICE", "MODULM_DISABLE_PLUGINS", "MODULM_STRICT_PLUGINS")


def clear_environment(monkeypatch: "pytest.MonkeyPatch") -> None:
    """Unset what chooses plugins, for one test."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def reset() -> None:
    """Forget what was discovered, loaded, chosen and registered. Modules that were never imported have nothing."""
    for name, module in list(sys.modules.items()):
        if name.startswith("modulm.plugins.") and callable(forget := getattr(module, "reset", None)):
            forget()


def registrations() -> dict[str, list[str]]:
    """Return the names that were registered in this process, by family."""
    held = sys.modules.get("modulm.plugins.registry")
    if held is None:
        return {}
    return {family: sorted(one.registrations()) for family, one in held._registries.items() if one.registrations()}


def environment() -> dict[str, str]:
    """Return the variables that this project and vLLM read."""
    return {name: value for name, value in os.environ.items() if name.startswith(("VLLM_", "MODULM_"))}
