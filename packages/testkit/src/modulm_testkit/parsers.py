"""Conformance of tool and reasoning parsers."""

from typing import Any

import pytest

from modulm_testkit.suite import Conformance, ask_for


class ToolParserConformance(Conformance):
    """Give `parser_class`: the class that the entry point of `modulm.tool_parsers` names."""

    @pytest.fixture
    def parser_class(self) -> Any:
        """Return the class."""
        ask_for("parser_class", "MyParser")


class ReasoningParserConformance(Conformance):
    """Give `parser_class`: the class that the entry point of `modulm.reasoning_parsers` names."""

    @pytest.fixture
    def parser_class(self) -> Any:
        """Return the class."""
        ask_for("parser_class", "MyParser")
