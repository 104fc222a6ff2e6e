"""What a format says of how it writes calls (`call_text`) is what it reads: grammars write it for the parser."""

import json
from importlib.metadata import entry_points

import pytest

from modulm.interfaces.parsers import ResponseContext

PARSERS = {each.name: each for each in entry_points(group="modulm.tool_parsers") if "modulm_parsers" in each.value}
TOOLS = [{"name": "add", "parameters": {"type": "object"}}, {"name": "get.now-2", "parameters": {"type": "object"}}]
ARGUMENTS = {"a": [1, {"b": '}]<tool_call> \\ " ä 😊'}], "c": None}
SPEAKING = [name for name in sorted(PARSERS) if PARSERS[name].load().call_text("add") is not None]


def test_the_usual_formats_say_how_they_write():
    assert {"hermes", "qwen3_json", "llama3_json", "jamba", "xlam"} <= set(SPEAKING)
    assert PARSERS["qwen3_coder"].load().call_text("add") is None  # its arguments are no JSON


@pytest.mark.parametrize("name", SPEAKING)
def test_what_is_written_is_read(name):
    parser = PARSERS[name].load()
    calls = [("add", ARGUMENTS), ("get.now-2", {}), ("add", {"x": 1})]
    texts = [parser.call_text(called) for called, _ in calls]
    assert all(text.begin.startswith(text.trigger) and text.trigger for text in texts)
    written = [f"{text.begin}{json.dumps(each[1])}{text.end}" for text, each in zip(texts, calls, strict=True)]
    context = ResponseContext(tools=TOOLS)
    for text in (texts[0].separator.join(written), "Well.\n" + written[0], written[0]):
        parsed = parser.parse(text, context)
        found = [(call.name, json.loads(call.arguments)) for call in parsed.calls]
        assert found == (calls if text.count(written[1]) else calls[:1])
        assert parsed.content.strip() == ("Well." if text.startswith("Well.") else "")
