"""Conformance of logits."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class LogitsProcessorConformance(Conformance):
    """Give `processor_class`: the class that the entry point of `vllm.logits_processors` names."""

    @pytest.fixture
    def processor_class(self) -> Any:
        """Return the class that the entry point of `vllm.logits_processors` names."""
        ask_for("processor_class", "MyProcessor")
