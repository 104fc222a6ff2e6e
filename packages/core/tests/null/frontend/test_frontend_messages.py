"""Messages as clients send them, among them the ones that public bug reports are about."""

import pytest

from modulm.errors import RequestError
from modulm.frontend.messages import join_parts, normalise


def call(arguments, name="f"):
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("arguments", ["", None, " ", "{}", {}])
def test_calls_without_arguments_get_an_empty_object(arguments):
    """Arguments "" and null in the history made templates fail."""
    (message,) = normalise([{"role": "assistant", "content": None, "tool_calls": [call(arguments)]}])
    assert message["tool_calls"][0]["function"]["arguments"] == {}
    assert "content" not in message


def test_arguments_as_json_become_objects():
    (message,) = normalise([{"role": "assistant", "tool_calls": [call('{"a": [1, "x"]}')]}])
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": [1, "x"]}


def test_arguments_that_are_missing_altogether():
    (message,) = normalise([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}])
    assert message["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("arguments", ["{", "5", "[1]", 5])
def test_arguments_that_are_no_object_are_refused(arguments):
    with pytest.raises(RequestError, match="Message 1 .*'f'"):
        normalise([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call(arguments)]}])


def test_parts_become_one_string_for_templates_that_want_one():
    parts = [{"type": "text", "text": "hi"}, "you", {"type": "input_text", "text": "!"}]
    (message,) = normalise([{"role": "user", "content": parts}])
    assert message["content"][1] == {"type": "text", "text": "you"}
    assert join_parts([message])[0]["content"] == "hi\nyou\n!"


def test_a_trailing_assistant_message_with_calls_and_late_system_messages_stay():
    chat = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "system", "content": "c"},
        {"role": "assistant", "content": "", "tool_calls": [call({})]},
    ]
    assert normalise(chat) == chat


def test_an_empty_list_of_calls_is_none():
    assert normalise([{"role": "assistant", "content": "x", "tool_calls": []}]) == [
        {"role": "assistant", "content": "x"}
    ]


def test_reasoning_under_any_of_its_names():
    for name in ("reasoning", "reasoning_content", "thinking"):
        (message,) = normalise([{"role": "assistant", "content": "x", name: "why"}])
        assert message["reasoning_content"] == message["thinking"] == "why"


def test_the_callers_messages_are_left_alone():
    chat = [{"role": "assistant", "content": None, "tool_calls": [call("")]}]
    normalise(chat)
    assert chat[0]["tool_calls"][0]["function"]["arguments"] == "" and "content" in chat[0]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "at least one message"),
        ("hi", "list of at least one"),
        ({"role": "user"}, "list of at least one"),
        (["hi"], "Message 0 .* str"),
        ([{"content": "x"}], "role is None"),
        ([{"role": 3, "content": "x"}], "role is 3"),
        ([{"role": "user"}], "needs 'content'"),
        ([{"role": "user", "content": 3}], "content is a int"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "no string under 'text'"),
        ([{"role": "user", "content": [{"type": []}]}], r"type \[\]"),
        ([{"role": "assistant", "tool_calls": "x"}], "must be a list"),
        ([{"role": "assistant", "tool_calls": [{}]}], "'function'"),
        ([{"role": "user", "content": object()}], "hold a object"),
    ],
)
def test_what_is_no_conversation_is_refused(messages, why):
    with pytest.raises(RequestError, match=why) as refused:
        normalise(messages)
    assert refused.value.parameter == "messages"


def test_endless_nesting_is_refused():
    nested = []
    for _ in range(50_000):
        nested = [nested]
    with pytest.raises(RequestError, match="nested too deeply"):
        normalise([{"role": "user", "content": "x", "extra": nested}])
