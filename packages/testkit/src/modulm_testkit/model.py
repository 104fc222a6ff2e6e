"""Conformance of model."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class ModelConformance(Conformance):
    """Give `model_class`: the class that the entry point of `modulm.models` names."""

    @pytest.fixture
    def model_class(self) -> Any:
        """Return the class that the entry point of `modulm.models` names."""
        ask_for("model_class", "MyForCausalLM")
