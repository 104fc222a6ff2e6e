"""What modulm relies on in every backend of structured output."""

import pytest

from modulm_structured_xgrammar.backend import XGrammarBackend
from modulm_testkit.structured import StructuredOutputConformance


class TestXGrammarBackend(StructuredOutputConformance):
    @pytest.fixture
    def backend_class(self):
        return XGrammarBackend
