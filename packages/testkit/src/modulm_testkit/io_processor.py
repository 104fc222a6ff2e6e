"""Conformance of io_processor."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class IOProcessorConformance(Conformance):
    """Give `processor_class`: the class whose path the entry point's function returns."""

    @pytest.fixture
    def processor_class(self) -> Any:
        """Return the class whose path the entry point's function returns."""
        ask_for("processor_class", "MyProcessor")
