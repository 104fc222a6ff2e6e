"""Conformance of executor."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class ExecutorConformance(Conformance):
    """Give `executor_class`: the class that the entry point of `modulm.executors` names."""

    @pytest.fixture
    def executor_class(self) -> Any:
        """Return the class that the entry point of `modulm.executors` names."""
        ask_for("executor_class", "MyExecutor")
