"""Conformance of kernels."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class KernelConformance(Conformance):
    """Give `provider`: the class that the entry point of `modulm.kernels` names."""

    @pytest.fixture
    def provider(self) -> Any:
        """Return the class that the entry point of `modulm.kernels` names."""
        ask_for("provider", "MyKernels")
