"""Conformance of lora."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class LoRAResolverConformance(Conformance):
    """Give `resolver`: an object of the class that the entry point of `modulm.lora_resolvers` names."""

    @pytest.fixture
    def resolver(self) -> Any:
        """Return an object of the class that the entry point of `modulm.lora_resolvers` names."""
        ask_for("resolver", "MyResolver()")
