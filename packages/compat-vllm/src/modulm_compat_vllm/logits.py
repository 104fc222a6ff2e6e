"""Logits processors and IO processors written for vLLM: they are made with vLLM's configuration instead of modulm's."""

import functools
from typing import Any, cast

from vllm.config import VllmConfig, set_current_vllm_config

from modulm.config import EngineConfig
from modulm_compat_vllm.config import view


@functools.cache
def adapted(plugin_class: type) -> type:
    """Return a subclass of a plugin's class whose first argument may be modulm's configuration."""

    def __init__(self: Any, vllm_config: Any, *args: Any, **options: Any) -> None:
        seen = as_vllm(vllm_config)
        with set_current_vllm_config(seen):
            super(made, self).__init__(seen, *args, **options)  # type: ignore[arg-type]

    said = {"__init__": __init__, "__module__": plugin_class.__module__, "__doc__": plugin_class.__doc__}
    made = type(plugin_class.__name__, (plugin_class,), {**said, "modulm_class": classmethod(lambda cls: cls)})
    made.__qualname__ = plugin_class.__qualname__
    return made


def as_vllm(config: Any) -> VllmConfig:
    """Return modulm's configuration as vLLM's; vLLM's own as it is."""
    return view(config) if isinstance(config, EngineConfig) else cast(VllmConfig, config)
