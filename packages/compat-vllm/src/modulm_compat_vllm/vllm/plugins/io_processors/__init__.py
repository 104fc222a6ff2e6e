"""Finding an IO processor: by the name that was asked for, or the one that the checkpoint's config names."""

from typing import Any

from vllm.plugins.io_processors.interface import IOProcessor

from modulm.errors import PluginError
from modulm.plugins.hooks import load_io_processor

__all__ = ["IOProcessor", "get_io_processor", "has_io_processor"]


def has_io_processor(vllm_config: Any, plugin_from_init: str | None = None) -> bool:
    """Whether a processor is asked for."""
    return _name(vllm_config, plugin_from_init) is not None


def get_io_processor(vllm_config: Any, renderer: Any = None, plugin_from_init: str | None = None) -> Any:
    """Return the processor that is asked for, ready made; None when none is.

    Raises `ValueError` for one that is not installed, fails, or is not for this environment.
    """
    name = _name(vllm_config, plugin_from_init)
    if name is None:
        return None
    try:
        return load_io_processor(name)(vllm_config, renderer)
    except PluginError as error:
        raise ValueError(str(error)) from error


def _name(vllm_config: Any, plugin_from_init: str | None) -> str | None:
    if plugin_from_init:
        return plugin_from_init
    return getattr(vllm_config.model_config.hf_config, "io_processor_plugin", None)
