"""What modulm relies on in every backend of structured output."""

import pytest

from modulm_structured_lmfe.backend import FormatEnforcerBackend
from modulm_testkit.structured import StructuredOutputConformance


class TestFormatEnforcerBackend(StructuredOutputConformance):
    @pytest.fixture
    def backend_class(self):
        return FormatEnforcerBackend
