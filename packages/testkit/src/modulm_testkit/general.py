"""Conformance of general plugins (group `vllm.general_plugins`): a function that registers, in every process.

Each class of tests starts one fresh process, `fresh.py`, that calls the function and tells what it did; a test that
needs more than its report does not exist.
"""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for

_SECONDS = 0.5
"""What `modulm plugins doctor` allows too."""
_reports: dict[str, dict[str, Any]] = {}


class GeneralPluginConformance(Conformance):
    """Give `register`: the function that the entry point of `vllm.general_plugins` names."""

    @pytest.fixture(name="register")
    def _register(self) -> Any:
        """Return the function."""
        ask_for("register", "register")

    @pytest.fixture
    def report(self, register: Any, tmp_path: Path) -> dict[str, Any]:
        """What a fresh process saw; tests that need more than an error skip where there was one."""
        found = observe(register, tmp_path)
        if found["error"]:
            pytest.skip("it raises: see test_runs")
        return found

    def test_runs(self, register: Any, tmp_path: Path) -> None:
        """The function takes no arguments and raises nothing, as long as nothing else is there."""
        assert not inspect.signature(register).parameters, "it takes arguments"
        assert not (error := observe(register, tmp_path)["error"]), error

    def test_runs_again(self, report: dict[str, Any]) -> None:
        """It may run twice: a forked process calls it once more, with what the parent registered."""
        assert not report["again"], f"the second call raises {report['again']}"

    def test_imports_no_torch(self, report: dict[str, Any]) -> None:
        """It registers by string and imports no torch: it runs in every process, also in those that have no tensors.

        What breaks it: importing the module of the class that is registered.
        """
        assert not report["torch"], "torch was imported"

    def test_is_quick(self, report: dict[str, Any], register: Any, tmp_path: Path) -> None:
        """Import and call take less than half a second together: every process waits for it."""
        seconds = report["seconds"]
        if seconds >= _SECONDS:  # once more, since other programs run here too
            seconds = min(seconds, observe(register, tmp_path, anew=True)["seconds"])
        assert seconds < _SECONDS, f"it took {seconds:.2f} s"

    def test_prints_nothing(self, report: dict[str, Any]) -> None:
        """Nothing is written to standard output, which may belong to a program that is read by another."""
        assert not report["stdout"], f"it prints {report['stdout']!r}"

    def test_leaves_the_process_alone(self, report: dict[str, Any]) -> None:
        """No environment variable changes and no thread runs: the plugin is a guest in somebody's program."""
        assert not report["environment"], f"it changes {', '.join(report['environment'])}"
        assert not report["threads"], f"it leaves threads running: {', '.join(report['threads'])}"

    def test_what_it_registers_is_there(self, report: dict[str, Any]) -> None:
        """Every reference that it registers can be imported, and is what its family asks for."""
        assert not report["broken"], "\n".join(report["broken"])


def observe(register: Any, folder: Path, *, anew: bool = False) -> dict[str, Any]:
    """Return what a fresh process tells of a function of a module; remembered by its name, unless asked anew."""
    reference = f"{register.__module__}:{register.__qualname__}"
    if anew or reference not in _reports:
        file = folder / "report.json"
        path = os.pathsep.join(filter(None, sys.path))
        environment = {name: value for name, value in os.environ.items() if name != "VLLM_PLUGINS"}
        done = subprocess.run(
            [sys.executable, "-m", "modulm_testkit.fresh", reference, str(file)],
            env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        _reports[reference] = {**json.loads(file.read_text()), "stdout": done.stdout}
    return _reports[reference]
