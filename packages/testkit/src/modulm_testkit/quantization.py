"""Conformance of quantization."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class QuantizationConformance(Conformance):
    """Give `scheme`: a `QuantizedSample`: the class, a checkpoint, what its weights are worth."""

    @pytest.fixture
    def scheme(self) -> Any:
        """Return a `QuantizedSample`: the class, a checkpoint, what its weights are worth."""
        ask_for("scheme", "QuantizedSample(...)")
