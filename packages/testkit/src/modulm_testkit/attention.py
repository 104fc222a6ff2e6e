"""Conformance of attention."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class AttentionConformance(Conformance):
    """Give `backend`: the class that the entry point of `modulm.attention` names."""

    @pytest.fixture
    def backend(self) -> Any:
        """Return the class that the entry point of `modulm.attention` names."""
        ask_for("backend", "MyBackend")
