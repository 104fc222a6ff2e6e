"""The current platform under vLLM's names: modulm's choice, shown as an object of vLLM's kind, found on first use.

`resolve_current_platform_cls_qualname` tells by vLLM's rules which class that is; the engine's own choice, which
`current_platform` shows, follows the same order and says more (`modulm.plugins.platforms`).
"""

import os
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm import plugins
from vllm.platforms.interface import CpuArchEnum, Platform, PlatformEnum, in_wsl

if TYPE_CHECKING:
    current_platform: Platform

__all__ = [
    "CpuArchEnum",
    "Platform",
    "PlatformEnum",
    "builtin_platform_plugins",
    "current_platform",
    "in_wsl",
    "resolve_current_platform_cls_qualname",
]

_CPU = "vllm.platforms.cpu.CpuPlatform"
_current_platform: Platform | None = None
_init_trace: str = ""
"""Who asked for the current platform first, as a stack."""


def cuda_platform_plugin() -> str | None:
    """Return the class path of the platform for NVIDIA's GPUs where there is one."""
    from modulm_compat_vllm.platform import serves

    return "vllm.platforms.cuda.CudaPlatform" if serves("cuda") else None


def cpu_platform_plugin() -> str | None:
    """Return the class path of the processor's platform; it serves where no other does."""
    return None if cuda_platform_plugin() else _CPU


builtin_platform_plugins: dict[str, Callable[[], str | None]] = {
    "cuda": cuda_platform_plugin,
    "cpu": cpu_platform_plugin,
}


def resolve_current_platform_cls_qualname() -> str:
    """Return the class path of the platform that vLLM's rules choose.

    VLLM_TARGET_DEVICE=cpu settles it; else the one active plugin, else the one active platform of our own.

    Raises `RuntimeError` when two plugins, or without plugins two of our own, are active.
    """
    if os.environ.get("VLLM_TARGET_DEVICE", "").strip().lower() == "cpu":
        return _CPU
    out_of_tree = plugins.load_plugins_by_group(plugins.PLATFORM_PLUGINS_GROUP)
    active = {name: path for name, probe in out_of_tree.items() if (path := _probed(name, probe)) is not None}
    if not active:
        active = {n: path for n, probe in builtin_platform_plugins.items() if (path := _probed(n, probe)) is not None}
    if len(active) > 1:
        raise RuntimeError(f"Only one platform plugin can be activated, but got: {list(active)}")
    return next(iter(active.values()), "vllm.platforms.interface.UnspecifiedPlatform")


def _probed(name: str, probe: Callable[[], str | None]) -> str | None:
    try:
        return probe()
    except Exception:  # a failing probe means "not here", as in vLLM; unlike there it is told
        plugins.logger.warning("The probe of platform %r failed, so it counts as not there.", name, exc_info=True)
        return None


def __getattr__(name: str) -> Any:
    global _current_platform, _init_trace
    if name != "current_platform":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _current_platform is None:
        from modulm_compat_vllm.platform import current

        _current_platform = current()
        _init_trace = "".join(traceback.format_stack())
    return _current_platform
