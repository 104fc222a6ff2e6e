"""`init_logger`, and the handler of logger `vllm`, under which plugins log.

Level from VLLM_LOGGING_LEVEL (INFO); VLLM_CONFIGURE_LOGGING=0 leaves handlers to the program. Written to stderr, unlike
vLLM's: stdout is the user's.
"""

import functools
import logging
import os
from types import MethodType
from typing import Any

_FORMAT = "%(levelname)s %(asctime)s %(name)s: %(message)s"


def init_logger(name: str) -> logging.Logger:
    """Return the logger `name` with vLLM's additions: `debug_once`, `info_once`, `warning_once`."""
    logger = logging.getLogger(name)
    for level in ("debug", "info", "warning"):
        setattr(logger, f"{level}_once", MethodType(functools.partial(_once, level), logger))
    return logger


def _once(level: str, logger: logging.Logger, message: str, *args: Any, **ignored: Any) -> None:
    """Log what this process has not logged yet. vLLM's `scope` says which ranks log; here there is one."""
    if (logger.name, level, message, args) not in _said:
        _said.add((logger.name, level, message, args))
        getattr(logger, level)(message, *args, stacklevel=3)


_said: set[tuple[Any, ...]] = set()


def _configure() -> None:
    root = logging.getLogger("vllm")
    if os.environ.get("VLLM_CONFIGURE_LOGGING", "1") == "0" or root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper())
    root.propagate = False


_configure()
