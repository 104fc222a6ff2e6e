"""Conformance of general."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class GeneralPluginConformance(Conformance):
    """Give `register`: the function that the entry point of `vllm.general_plugins` names."""

    @pytest.fixture
    def register(self) -> Any:
        """Return the function that the entry point of `vllm.general_plugins` names."""
        ask_for("register", "register")
