"""Core's own stat logger keeps the contract."""

import pytest

from modulm.frontend.stat_lines import StatLines
from modulm_testkit.stat_logger import StatLoggerConformance


class TestStatLines(StatLoggerConformance):
    @pytest.fixture
    def logger_class(self):
        return StatLines
