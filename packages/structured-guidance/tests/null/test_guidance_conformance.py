"""What modulm relies on in every backend of structured output."""

import pytest

from modulm_structured_guidance.backend import GuidanceBackend
from modulm_testkit.structured import StructuredOutputConformance


class TestGuidanceBackend(StructuredOutputConformance):
    @pytest.fixture
    def backend_class(self):
        return GuidanceBackend
