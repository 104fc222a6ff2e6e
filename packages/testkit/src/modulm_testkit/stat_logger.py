"""Conformance of stat_logger."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class StatLoggerConformance(Conformance):
    """Give `logger_class`: the class that the entry point of `vllm.stat_logger_plugins` names."""

    @pytest.fixture
    def logger_class(self) -> Any:
        """Return the class that the entry point of `vllm.stat_logger_plugins` names."""
        ask_for("logger_class", "MyLogger")
