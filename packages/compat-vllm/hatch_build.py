"""Puts `modulm_compat_vllm.pth` beside the package, in the wheel and in an editable install alike."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PTH = "modulm_compat_vllm.pth"


class StartHook(BuildHookInterface):
    """Hatchling has no static setting for files of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file to this build."""
        build_data["force_include" if version == "standard" else "force_include_editable"][PTH] = PTH
