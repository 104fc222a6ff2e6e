"""/v1/chat/completions over HTTP, against the recited text and the template's own words."""

import pytest

from modulm.server.schema.chat import Message


def test_a_conversation_is_answered(server):
    answer = server.chat(max_tokens=9)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": server.text(9), "refusal": None}
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len(server.tokenizer.encode("<|user|>hi\n<|assistant|>"))


def test_without_a_limit_the_answer_goes_on_to_the_models(server):
    """F8."""
    usage = server.chat()["usage"]
    assert usage["total_tokens"] == 200


def test_a_stream_begins_with_the_role_and_says_the_same(server):
    chunks = server.chat(max_tokens=12, stream=True)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == server.text(12)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_each_token(server, stream):
    answer = server.chat(max_tokens=4, logprobs=True, top_logprobs=2, stream=stream)
    content = [
        entry
        for chunk in (answer if stream else [answer])
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {}).get("content", [])
    ]
    assert [entry["logprob"] for entry in content] == [-1, -2, -3, -4]
    assert "".join(entry["token"] for entry in content) == server.text(4)
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in content)
    assert [[top["logprob"] for top in entry["top_logprobs"]] for entry in content] == [
        [value, -9999.0] for value in (-1, -2, -3, -4)
    ]


def test_several_answers_are_separate(server):
    answer = server.chat(n=3, temperature=1, max_tokens=5)
    assert [(c["index"], c["message"]["content"]) for c in answer["choices"]] == [(i, server.text(5)) for i in range(3)]
    chunks = server.chat(n=3, temperature=1, max_tokens=5, stream=True)
    texts = dict.fromkeys(range(3), "")
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == dict.fromkeys(range(3), server.text(5))


def test_parts_and_a_continued_message(server):
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    said = server.chat(messages=parts, max_tokens=1, return_token_ids=True)
    assert said["prompt_token_ids"] == server.tokenizer.encode("<|user|>a\nb\n<|assistant|>")
    begun = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Once"}]
    options = {"add_generation_prompt": False, "continue_final_message": True, "max_tokens": 2}
    said = server.chat(messages=begun, return_token_ids=True, **options)
    assert said["prompt_token_ids"] == server.tokenizer.encode("<|user|>q\n<|assistant|>Once")
    assert server.chat(messages=begun, echo=True, **options)["choices"][0]["message"]["content"] == (
        "Once" + server.text(2)
    )


def test_without_a_tool_parser_tools_are_shown_only_where_none_may_be_called(server):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    assert server.chat(tools=tools, tool_choice="none", max_tokens=1)["choices"]
    for choice in (None, "auto", "required", {"type": "function", "function": {"name": "f"}}):
        status, _, answer = server.ask(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice},
        )
        assert (status, answer["error"]["param"]) == (400, "tool_choice")


def test_a_template_of_the_clients_own_needs_trust(make_server):
    trusting = make_server(options={"trust_request_chat_template": True})
    body = {"chat_template": "X{{ messages[0].content }}{{ word }}", "max_tokens": 1, "return_token_ids": True}
    said = trusting.chat(**body, chat_template_kwargs={"word": "Y"})
    assert said["prompt_token_ids"] == trusting.tokenizer.encode("XhiY")


def test_a_message_that_says_nothing_is_an_empty_object():
    import msgspec

    assert msgspec.json.encode(Message()) == b"{}"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_goes_on_with_a_message_has_its_role(server, stream):
    """vLLM's rule: the server's role is for messages that the template opens."""
    messages = [{"role": "user", "content": "hi"}, {"role": "narrator", "content": "Once"}]
    for options, role in (
        ({"continue_final_message": True}, "narrator"),
        ({"add_generation_prompt": False}, "narrator"),
    ):
        answer = server.chat(messages=messages, max_tokens=2, stream=stream, **options)
        said = answer[0]["choices"][0]["delta"] if stream else answer["choices"][0]["message"]
        assert said["role"] == role
    answer = server.chat(messages=messages, max_tokens=2)
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_a_stream_tells_the_prompts_ids_once(server):
    ids = server.tokenizer.encode("<|user|>hi\n<|assistant|>")
    for n in (1, 2):
        chunks = server.chat(max_tokens=3, stream=True, return_token_ids=True, n=n, temperature=1)
        assert [chunk.get("prompt_token_ids") for chunk in chunks] == [ids, *[None] * (len(chunks) - 1)]
    usage = {"stream_options": {"include_usage": True}}
    chunks = server.chat(max_tokens=3, stream=True, return_token_ids=True, **usage)
    assert (chunks[0]["prompt_token_ids"], chunks[0]["usage"]) == (ids, None)
