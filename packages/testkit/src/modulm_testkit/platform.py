"""Conformance of platform."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class PlatformConformance(Conformance):
    """Give `platform_class`: the class whose path the entry point's function returns."""

    @pytest.fixture
    def platform_class(self) -> Any:
        """Return the class whose path the entry point's function returns."""
        ask_for("platform_class", "MyPlatform")
