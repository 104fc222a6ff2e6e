"""Names that plugins and parser files import: they stay where they are."""

import importlib

import pytest

import modulm


def test_what_modulm_offers_is_there():
    for name in modulm.__all__:
        assert getattr(modulm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = modulm.nothing


def test_a_parser_file_needs_one_module_of_contracts():
    parsers = importlib.import_module("modulm.interfaces.parsers")
    needed = "ToolParser ReasoningParser TextParser GrowingText Content Reasoning CallStart CallArguments Event Parsed"
    for name in [*needed.split(), "ResponseContext", "SamplingParams", "collect"]:
        assert getattr(parsers, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = parsers.nothing
