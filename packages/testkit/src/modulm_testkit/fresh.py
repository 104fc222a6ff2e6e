"""Run as a program: call a general plugin's function as a process does that has just started, and tell what it did.

    python -m modulm_testkit.fresh MODULE:FUNCTION REPORT

The report is JSON. What the plugin prints goes where it went; who started this reads it. Knows no suite.
"""

import json
import os
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any


def observed(reference: str) -> dict[str, Any]:
    """Call the function twice and return what happened: `error`, or the plugin's doings."""
    from modulm.plugins.registry import registry
    from modulm_testkit.registries import registrations

    environment, threads = dict(os.environ), set(threading.enumerate())
    module, _, name = reference.partition(":")
    report: dict[str, Any] = {"error": "", "again": "", "broken": []}
    started = time.perf_counter()
    try:
        function: Any = import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        function()
    except BaseException as error:
        report["error"] = f"{type(error).__name__}: {error}"
    report["seconds"] = time.perf_counter() - started
    report["torch"] = "torch" in sys.modules
    report["threads"] = [thread.name for thread in set(threading.enumerate()) - threads]
    report["environment"] = sorted(
        name for name in {*os.environ, *environment} if os.environ.get(name) != environment.get(name)
    )
    if not report["error"]:
        try:
            function()
        except BaseException as error:
            report["again"] = f"{type(error).__name__}: {error}"
    for family, names in registrations().items():
        for name in names:
            try:
                registry(family).get(name)
            except Exception as error:
                report["broken"].append(f"{family} {name!r}: {error}")
    return report


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(observed(sys.argv[1])))
