"""What modulm relies on in every backend of structured output."""

import pytest

from modulm_structured_outlines.backend import OutlinesBackend
from modulm_testkit.structured import StructuredOutputConformance


class TestOutlinesBackend(StructuredOutputConformance):
    @pytest.fixture
    def backend_class(self):
        return OutlinesBackend
