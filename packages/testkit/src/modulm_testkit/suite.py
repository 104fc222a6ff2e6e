"""The base of every suite, and its one rule: a promise may be marked as not kept yet, but not rewritten.

Knows no contract. `plugin.py` turns the marks into expected failures.
"""

from typing import Any, NoReturn

import pytest

_KIT = f"{__package__}."


class Conformance:
    """A contract's promises, one test each; the docstring of a test is the promise.

    Derive a class `Test...` from a suite and define the fixture it asks for. A promise that your plugin does not keep
    yet is marked, with the reason; a mark that is no longer true fails:

        @pytest.mark.conformance_xfail("test_sinks", reason="the kernel has none before 0.3")
        class TestMine(AttentionConformance): ...
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__[1:]:
            if not base.__module__.startswith(_KIT):
                continue
            for name, own in vars(base).items():
                if name.startswith("test_") and getattr(cls, name) is not own:
                    raise TypeError(
                        f"{cls.__qualname__} redefines {base.__name__}.{name}, a promise of the contract, which must "
                        "stay as it is. Where the plugin does not keep it yet, mark the class: "
                        f'@pytest.mark.conformance_xfail("{name}", reason="..."). A test of your own needs another '
                        "name."
                    )


def ask_for(fixture: str, example: str) -> NoReturn:
    """Fail the test of an author who has not defined the suite's fixture.

    Suites call it in fixtures whose methods begin with an underscore: of two fixtures of one name pytest takes the one
    whose method comes last in the alphabet, should the author's method have a name of its own.
    """
    pytest.fail(
        f"This suite needs a fixture {fixture!r} in your class: @pytest.fixture def {fixture}(self): return {example}",
        pytrace=False,
    )


def promise(test: Any) -> str:
    """Return the first line of a test's docstring: what it promises."""
    return (test.__doc__ or "").strip().partition("\n")[0]
