"""Conformance of endpoint."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class EndpointConformance(Conformance):
    """Give `plugin`: what the entry point of `vllm.endpoint_plugins` names; called, it returns the plugin."""

    @pytest.fixture
    def plugin(self) -> Any:
        """Return what the entry point of `vllm.endpoint_plugins` names; called, it returns the plugin."""
        ask_for("plugin", "MyPlugin")
