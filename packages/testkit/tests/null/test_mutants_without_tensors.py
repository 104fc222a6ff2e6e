"""Contracts without tensors: what keeps a contract passes its suite, and each promise is broken by a mutant."""

import sys

from checks import MutantChecks


class TestMutants(MutantChecks):
    contracts = (
        "checkpoint",
        "quantization",
        "stat_logger",
        "io_processor",
        "executor",
        "lora",
        "endpoint",
        "general",
        "tool_parsers",
        "reasoning_parsers",
        "sampling",
    )


def test_no_torch():
    assert "torch" not in sys.modules
