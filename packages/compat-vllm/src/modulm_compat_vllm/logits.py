"""Logits processors and IO processors written for vLLM: they are made with vLLM's configuration instead of modulm's."""

import functools
from typing import Any, cast

from vllm.config import VllmConfig, set_current_vllm_config

from modulm.config import EngineConfig
from modulm_compat_vllm.config import view
from modulm_compat_vllm.stand_in import stand_in


@functools.cache
def adapted(plugin_class: type) -> type:
    """Return a subclass of a plugin's class whose first argument may be modulm's configuration."""

    def __init__(self: Any, vllm_config: Any, *args: Any, **options: Any) -> None:
        seen = as_vllm(vllm_config)
        with set_current_vllm_config(seen):
            super(made, self).__init__(seen, *args, **options)  # type: ignore[arg-type]

    made: type = stand_in(plugin_class, plugin_class, __init__=__init__, modulm_class=classmethod(lambda cls: cls))
    return made


def as_vllm(config: Any) -> VllmConfig:
    """Return modulm's configuration as vLLM's; vLLM's own as it is."""
    return view(config) if isinstance(config, EngineConfig) else cast(VllmConfig, config)
