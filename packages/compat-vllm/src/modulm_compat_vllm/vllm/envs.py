"""Environment variables that modulm heeds too, read when asked for, in vLLM's form."""

import os
from collections.abc import Callable
from typing import Any


def _listed(name: str) -> list[str] | None:
    text = os.environ.get(name)
    return None if text is None else text.split(",")


environment_variables: dict[str, Callable[[], Any]] = {
    "VLLM_API_KEY": lambda: os.environ.get("VLLM_API_KEY"),
    "VLLM_CONFIGURE_LOGGING": lambda: os.environ.get("VLLM_CONFIGURE_LOGGING", "1") != "0",
    "VLLM_LOGGING_LEVEL": lambda: os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper(),
    "VLLM_PLUGINS": lambda: _listed("VLLM_PLUGINS"),
    "VLLM_TARGET_DEVICE": lambda: os.environ.get("VLLM_TARGET_DEVICE", "cuda").lower(),
}


def __getattr__(name: str) -> Any:
    if name in environment_variables:
        return environment_variables[name]()
    raise AttributeError(
        f"vllm.envs.{name} is not here: modulm does not heed it. It heeds: {', '.join(environment_variables)}."
    )


def __dir__() -> list[str]:
    return list(environment_variables)


def is_set(name: str) -> bool:
    """Whether a variable is in the environment. Raises `AttributeError` for one that modulm does not heed."""
    if name not in environment_variables:
        return bool(__getattr__(name))
    return name in os.environ
