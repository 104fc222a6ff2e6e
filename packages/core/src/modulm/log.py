"""Logging: one named logger per room under `modulm`, written to stderr so that stdout stays the user's.

Level from `MODULM_LOG_LEVEL` (default WARNING for library use; the command line raises it). Knows no room.
"""

import logging
import os

_FORMAT = "%(levelname)s %(asctime)s %(name)s: %(message)s"


def logger(name: str) -> logging.Logger:
    """Return the logger `modulm.<name>`; the first call installs the handler unless the user has one."""
    root = logging.getLogger("modulm")
    if not root.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
        root.addHandler(handler)
        root.setLevel(os.environ.get("MODULM_LOG_LEVEL", "WARNING").upper())
        root.propagate = False
    return root.getChild(name)


_said: set[str] = set()


def warn_once(log: logging.Logger, message: str) -> None:
    """Log `message` as a warning the first time it is seen in this process."""
    if message not in _said:
        _said.add(message)
        log.warning(message)
