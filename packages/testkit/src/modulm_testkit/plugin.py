"""The pytest plugin: expected failures of suites, clean registries, leaks, counts. Every pytest that finds it loads it.

So it imports nothing but pytest and the standard library, and does nothing for tests that use none of it.
"""

import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MARK = "conformance_xfail"
_CUTS = "modulm_parser_cuts"
_told: list[dict[str, int]] = []
_UNTOUCHED = ("plugin", "templates")
_modules = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
pytest.register_assert_rewrite(*(f"{__package__}.{name}" for name in _modules if name not in _UNTOUCHED))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line(
        "markers", f"{MARK}(*tests, reason): promises of a conformance suite that the plugin does not keep yet"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Turn the marks of suites into expected failures; one that passes is a failure."""
    for item in items:
        for mark in item.iter_markers(MARK):
            _check(item, mark)
            if {item.name, getattr(item, "originalname", item.name)} & set(mark.args):
                item.add_marker(pytest.mark.xfail(reason=mark.kwargs["reason"], strict=True))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where tests are spread over processes (pytest-xdist), each tells the first what it has counted."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_CUTS] = _cuts()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what another process has counted."""
    _told.append(getattr(node, "workeroutput", {}).get(_CUTS, {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many ways of cutting texts were tried on parsers, if any."""
    total: dict[str, int] = {}
    for cuts in (_cuts(), *_told):
        total.update({name: total.get(name, 0) + number for name, number in cuts.items()})
    if total:
        terminalreporter.write_line(f"parser invariants: {sum(total.values()):,} cuts over {len(total)} parsers")


def _cuts() -> dict[str, int]:
    counted = getattr(sys.modules.get(f"{__package__}.parsers"), "CUTS", {})
    return {f"{parser.__module__}.{parser.__qualname__}": number for parser, number in counted.items()}


def _check(item: pytest.Item, mark: pytest.Mark) -> None:
    suite: Any = getattr(item, "cls", None)
    if not mark.kwargs.get("reason"):
        raise pytest.UsageError(f"{item.nodeid}: {MARK} needs reason='...', to say why the promise is not kept.")
    unknown = [name for name in mark.args if not hasattr(suite, str(name).partition("[")[0])]
    if unknown or not mark.args:
        tests = sorted(name for name in dir(suite) if name.startswith("test_"))
        raise pytest.UsageError(
            f"{item.nodeid}: {MARK} names {unknown[0] if unknown else 'no test'!r}, which the suite does not have. "
            f"There are: {', '.join(tests)}."
        )


@pytest.fixture
def clean_registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything as in a fresh process: no variable of plugins is set, nothing was discovered or registered.

    What the test sets and registers is forgotten afterwards.
    """
    from modulm_testkit import registries

    registries.clear_environment(monkeypatch)
    registries.reset()
    yield
    registries.reset()


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail the test when it leaves threads, open files or registrations behind, or imports torch."""
    from modulm_testkit.leaks import leaks

    with leaks() as found:
        yield
    assert not found, f"left behind: {'; '.join(found)}"
