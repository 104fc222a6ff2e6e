"""What forms and budgets go by: behind the start marker every parser thinks, and behind any end marker it answers."""

from importlib.metadata import entry_points

import pytest

from modulm.interfaces.parsers import ResponseContext

PARSERS = {each.name: each for each in entry_points(group="modulm.reasoning_parsers") if "modulm_parsers" in each.value}


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_markers_are_where_the_parser_turns(name):
    parser = PARSERS[name].load()
    if parser.start_marker is None or not parser.end_markers():
        pytest.skip("it names no marks")
    for end in parser.end_markers():
        parsed = parser.parse(f"{parser.start_marker}Thinking of it.{end}The answer.", ResponseContext())
        assert "Thinking of it." in parsed.reasoning and "The answer." not in parsed.reasoning
        assert "The answer." in parsed.content and "Thinking of it." not in parsed.content
