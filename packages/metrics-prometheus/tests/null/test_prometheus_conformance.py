"""The logger keeps the contract, by the suite that plugin authors run on theirs."""

import pytest

from modulm_metrics_prometheus.logger import PrometheusStatLogger
from modulm_testkit.stat_logger import StatLoggerConformance


class TestPrometheusStatLogger(StatLoggerConformance):
    @pytest.fixture
    def logger_class(self):
        return PrometheusStatLogger
