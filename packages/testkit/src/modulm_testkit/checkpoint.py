"""Conformance of checkpoint."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class CheckpointConformance(Conformance):
    """Give `checkpoint`: a `CheckpointSample`: the class, a file, what is in it."""

    @pytest.fixture
    def checkpoint(self) -> Any:
        """Return a `CheckpointSample`: the class, a file, what is in it."""
        ask_for("checkpoint", "CheckpointSample(...)")
