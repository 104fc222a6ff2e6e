"""A contract's suite, a plugin that keeps it, and mutants that each break one promise; all run in one pytest."""

import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pytest

from modulm_testkit.suite import promise

HERE = Path(__file__).parent
CONTRACTS: dict[str, "Contract"] = {}
"""By the name of the module in this folder."""


@dataclass
class Outcome:
    """Names of a suite's tests, by how some of their cases ended."""

    passed: set = field(default_factory=set)
    failed: set = field(default_factory=set)
    reasons: dict = field(default_factory=dict)


class Contract:
    """`fixture` is what the suite asks for; `reference` is given to it first, and must pass.

    `wrap` makes what the fixture returns of a plugin.
    """

    def __init__(self, name, suite, fixture, reference, wrap=lambda plugin: plugin, **attributes):
        self.wrap = wrap
        self.name, self.suite, self.fixture, self.attributes = name, suite, fixture, attributes
        self.references = {"reference": (reference, {})}
        self.mutants = {}
        CONTRACTS[name] = self

    def also(self, name, plugin, **attributes):
        """Another plugin that keeps the contract."""
        self.references[name] = (plugin, attributes)

    def mutant(self, test, **attributes):
        """The decorated plugin breaks `test` and nothing else; its docstring says how."""
        assert hasattr(self.suite, test), test

        def add(given):
            self.mutants[given.__name__] = (test, given, attributes)
            return given

        return add

    @property
    def promises(self):
        """Names of the suite's tests, with what they promise, in the order of the file."""
        tests = {}
        for base in reversed(self.suite.__mro__):
            tests.update({name: promise(test) for name, test in vars(base).items() if name.startswith("test_")})
        return tests

    def classes(self):
        """Return a class of tests for each plugin, by its name."""
        given = {name: (plugin, attributes) for name, (_, plugin, attributes) in self.mutants.items()}
        return {
            f"Test_{name}": self._tests(plugin, attributes)
            for name, (plugin, attributes) in {**self.references, **given}.items()
        }

    def _tests(self, plugin, attributes):
        def give(tests):
            return self.wrap(plugin)

        members = {**self.attributes, **attributes, self.fixture: pytest.fixture(give)}
        return type("Test", (self.suite,), members)

    def run(self):
        """Run them all; return an `Outcome` by plugin."""
        recorder = _Recorder()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"test_all_of_{self.name}.py"
            file.write_text(f"from contract import CONTRACTS\nglobals().update(CONTRACTS[{self.name!r}].classes())\n")
            plugins = "terminal cacheprovider logging capture faulthandler warnings unraisableexception threadexception"
            quiet = [f"-pno:{name}" for name in (*plugins.split(), *_autoloaded())]
            status = pytest.main(
                [str(file), "-c", "/dev/null", f"--rootdir={folder}", "--import-mode=importlib", *quiet],
                plugins=[recorder],
            )
            assert status in (0, 1), status
        for cuts in [module.CUTS for name, module in sys.modules.items() if name == "modulm_testkit.parsers"]:
            cuts.clear()  # those of mutants count for nobody
        return recorder.outcomes


def _autoloaded():
    """Return the names of installed pytest plugins other than the kit's, which only cost time here."""
    found = (entry.name for entry in metadata.entry_points(group="pytest11"))
    return [name for name in found if name != "modulm"]


class _Recorder:
    def __init__(self):
        self.outcomes = defaultdict(Outcome)

    def pytest_collectreport(self, report):
        assert not report.failed, report.longrepr

    def pytest_runtest_logreport(self, report):
        _, plugin, test = report.nodeid.split("::", 2)
        outcome, test = self.outcomes[plugin.removeprefix("Test_")], test.partition("[")[0]
        if report.failed:
            outcome.failed.add(test)
            crash = getattr(report.longrepr, "reprcrash", report.longrepr)
            outcome.reasons.setdefault(test, f"{report.nodeid}: {crash}"[:600])
        elif report.when == "call" and report.passed:
            outcome.passed.add(test)
