"""Contracts whose mutants take a second or two and no torch; the others are in `tests/cpu/test_mutants.py`."""

import sys

from checks import MutantChecks


class TestMutants(MutantChecks):
    contracts = (
        "checkpoint",
        "endpoint",
        "executor",
        "io_processor",
        "lora",
        "quantization",
        "speculator",
        "stat_logger",
        "structured",
    )


def test_no_torch():
    assert "torch" not in sys.modules
