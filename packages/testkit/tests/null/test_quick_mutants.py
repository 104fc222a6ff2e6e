"""Contracts whose mutants take no time and no torch; the others are in `tests/cpu/test_mutants.py`."""

import sys

from checks import MutantChecks


class TestMutants(MutantChecks):
    contracts = ("quantization", "io_processor", "executor", "lora", "endpoint")


def test_no_torch():
    assert "torch" not in sys.modules
