"""A bad request gets a 4xx whose body names the field; then a good one gets a 200, and the server is healthy."""

import json

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
DEEP = b"[" * 100_000 + b"]" * 100_000

RAW = {
    "empty": b"",
    "no JSON": b"prompt=a",
    "cut short": b'{"prompt": "a"',
    "trailing": b'{"prompt": "a"} x',
    "a list": b'["a"]',
    "a number": b"1",
    "not UTF-8": b'{"prompt": "\xff\xfe"}',
    "half a surrogate pair": b'{"prompt": "\\ud800"}',
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "infinity": b'{"prompt": "a", "top_p": Infinity}',
    "deep prompt": b'{"prompt": ' + DEEP + b"}",
    "deep messages": b'{"messages": ' + DEEP + b"}",
    "deep unknown": b'{"x": ' + DEEP + b"}",
    "byte order mark": b'\xef\xbb\xbf{"prompt": "a"}',
}

BAD = [
    # (path, body's fields, the field at fault)
    (COMPLETIONS, {}, "prompt"),
    (COMPLETIONS, {"prompt": None}, "prompt"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": [""]}, "prompt"),
    (COMPLETIONS, {"prompt": [[]]}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", 1]}, "prompt"),
    (COMPLETIONS, {"prompt": [["a"]]}, "prompt"),
    (COMPLETIONS, {"prompt": [1.5]}, "prompt"),
    (COMPLETIONS, {"prompt": {"prompt": "a"}}, "prompt"),
    (COMPLETIONS, {"prompt": [10**6]}, "prompt"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt"),
    (COMPLETIONS, {"prompt": [2] * 200}, "prompt"),
    (COMPLETIONS, {"prompt": [2] * 201}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", [2] * 300]}, "prompt"),
    (COMPLETIONS, {"prompt": [[2], [2] * 300], "stream": True}, "prompt"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": -1}, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": "5"}, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 5.0}, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 10**300}, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "n": 0}, "n"),
    (COMPLETIONS, {"prompt": "a", "n": 2, "temperature": 0}, "n"),
    (COMPLETIONS, {"prompt": "a", "n": 100_000, "temperature": 1}, "n"),
    (COMPLETIONS, {"prompt": "a", "best_of": 3}, "best_of"),
    (COMPLETIONS, {"prompt": "a", "temperature": -0.1}, "temperature"),
    (COMPLETIONS, {"prompt": "a", "temperature": True}, "temperature"),
    (COMPLETIONS, {"prompt": "a", "temperature": "1"}, "temperature"),
    (COMPLETIONS, {"prompt": "a", "top_p": 0}, "top_p"),
    (COMPLETIONS, {"prompt": "a", "top_p": 1.1}, "top_p"),
    (COMPLETIONS, {"prompt": "a", "top_k": -2}, "top_k"),
    (COMPLETIONS, {"prompt": "a", "min_p": 2}, "min_p"),
    (COMPLETIONS, {"prompt": "a", "seed": 2**70}, "seed"),
    (COMPLETIONS, {"prompt": "a", "presence_penalty": 3}, "presence_penalty"),
    (COMPLETIONS, {"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"),
    (COMPLETIONS, {"prompt": "a", "stop": [""]}, "stop"),
    (COMPLETIONS, {"prompt": "a", "stop": [1]}, "stop"),
    (COMPLETIONS, {"prompt": "a", "stop_token_ids": [10**6]}, "stop_token_ids"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"191222": 1}}, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"1": "x"}}, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "allowed_token_ids": []}, "allowed_token_ids"),
    (COMPLETIONS, {"prompt": "a", "allowed_token_ids": [-3]}, "allowed_token_ids"),
    (COMPLETIONS, {"prompt": "a", "bad_words": [" "]}, "bad_words"),
    (COMPLETIONS, {"prompt": "a", "logprobs": 21}, "logprobs"),
    (COMPLETIONS, {"prompt": "a", "logprobs": True}, "logprobs"),
    (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs"),
    (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    (COMPLETIONS, {"prompt": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    (COMPLETIONS, {"prompt": "a", "min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    (COMPLETIONS, {"prompt": "a", "priority": 1}, "priority"),
    (COMPLETIONS, {"prompt": "a", "stream": "yes"}, "stream"),
    (COMPLETIONS, {"prompt": "a", "stream_options": 5}, "stream_options"),
    (COMPLETIONS, {"prompt": "a", "stream_options": {"include_usage": 1}}, "stream_options"),
    (COMPLETIONS, {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"messages": HI, "stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
    (COMPLETIONS, {"prompt": "a", "cache_salt": ""}, "cache_salt"),
    (COMPLETIONS, {"prompt": "a", "temprature": 0.5}, "temprature"),
    (COMPLETIONS, {"prompt": "a", "max_token": 5}, "max_token"),
    (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix"),
    (COMPLETIONS, {"prompt": "a", "use_beam_search": True}, "use_beam_search"),
    (COMPLETIONS, {"prompt": "a", "guided_regex": "a*"}, "guided_regex"),
    (COMPLETIONS, {"prompt": "a", "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    (COMPLETIONS, {"prompt": "a", "prompt_embeds": "xx"}, "prompt_embeds"),
    (COMPLETIONS, {"prompt": "a", "model": 5}, "model"),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": None}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hi"}, "messages"),
    (CHAT, {"messages": [1]}, "messages"),
    (CHAT, {"messages": [{}]}, "messages"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    (CHAT, {"messages": HI, "max_tokens": 0}, "max_tokens"),
    (CHAT, {"messages": HI, "max_completion_tokens": -1}, "max_completion_tokens"),
    (CHAT, {"messages": HI, "max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
    (CHAT, {"messages": HI, "top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"messages": HI, "logprobs": 2}, "logprobs"),
    (CHAT, {"messages": HI, "response_format": {"type": "json_object"}}, "response_format"),
    (CHAT, {"messages": HI, "tool_choice": "required"}, "tool_choice"),
    (CHAT, {"messages": HI, "tools": "f"}, "tools"),
    (CHAT, {"messages": HI, "functions": [{"name": "f"}]}, "functions"),
    (CHAT, {"messages": HI, "modalities": ["audio"]}, "modalities"),
    (CHAT, {"messages": HI, "chat_template": "x"}, "chat_template"),
    (CHAT, {"messages": HI, "chat_template_kwargs": []}, "chat_template_kwargs"),
    (CHAT, {"messages": HI, "documents": ["a"]}, "documents"),
    (CHAT, {"messages": HI, "add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [2**80]}, "tokens"),
]


def check_error(answer, status, expected):
    assert status == expected, answer
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def check_well(server):
    assert server.complete(prompt="a", max_tokens=2)["choices"][0]["text"] == server.text(2)
    assert server.ask("/health")[0] == 200
    assert server.is_idle()


@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case[0][4:]} {json.dumps(case[1])[:50]}")
def test_the_field_at_fault_is_named(server, case):
    path, body, field = case
    status, _, answer = server.ask(path, body)
    error = check_error(answer, status, 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    check_well(server)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", RAW.values(), ids=RAW)
def test_what_is_no_json_is_refused(server, path, body):
    status, _, answer = server.ask(path, body)
    check_error(answer, status, 400)
    check_well(server)


def test_a_model_that_is_not_served_is_not_found(server):
    for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": HI}), ("/tokenize", {"prompt": "a"})):
        status, _, answer = server.ask(path, {**body, "model": "gpt-5"})
        error = check_error(answer, status, 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'reciter'" in error["message"]
    check_error(server.ask("/v1/models/gpt-5")[2], server.ask("/v1/models/gpt-5")[0], 404)


def test_paths_and_methods_that_are_not_there(server):
    for path, method, expected in (("/v1/nothing", "GET", 404), (CHAT, "GET", 405), ("/health", "DELETE", 405)):
        status, headers, answer = server.ask(path, method=method)
        assert path in check_error(answer, status, expected)["message"]
        assert ("allow" in headers) == (expected == 405)


def test_adapters_say_that_they_are_not_served(server):
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        status, _, answer = server.ask(path, {"lora_name": "a", "lora_path": "b"})
        assert "LoRA" in check_error(answer, status, 501)["message"]


@pytest.fixture(scope="module")
def small(make_server):
    return make_server(options={"max_body_bytes": 1000})


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_above_the_limit_is_refused_whether_announced_or_not(small, announced):
    body = json.dumps({"prompt": "a" * 2000}).encode()
    headers = {"Content-Length": str(len(body))} if announced else {"Transfer-Encoding": "chunked"}
    sent = body if announced else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    status, _, answer = small.ask(COMPLETIONS, sent, headers)
    assert "--max-body-bytes" in check_error(answer, status, 413)["message"]
    check_well(small)


def test_a_failure_of_ours_is_a_500_that_tells_nothing_of_the_inside(server, monkeypatch):
    monkeypatch.setattr(server.llm, "render", lambda *args, **options: 1 / 0)
    status, _, answer = server.ask(CHAT, {"messages": HI})
    error = check_error(answer, status, 500)
    assert error["type"] == "server_error"
    assert "division" not in error["message"]
    monkeypatch.undo()
    check_well(server)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("more", [0, 1, 50])
def test_a_prompt_as_long_as_the_model_is_told_both_numbers(server, path, more):
    """F9 and F10: as many tokens as the model takes leave no place for an answer; more do not wait for ever."""
    count = 200 + more
    head = len(server.tokenizer.encode("<|user|>\n<|assistant|>"))
    messages = [{"role": "user", "content": "0" * (count - head)}]
    body = {"prompt": [5] * count} if path == COMPLETIONS else {"messages": messages}
    for stream in (False, True):
        status, _, answer = server.ask(path, {**body, "stream": stream, "max_tokens": 1})
        message = check_error(answer, status, 400)["message"]
        assert str(count) in message and "200" in message
    check_well(server)


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
@pytest.mark.parametrize("value", [b"NaN", b"-NaN", b"nan", b"Infinity", b"-Infinity", b"1e999", b'"NaN"'])
def test_what_is_no_number_never_passes_a_check_of_ranges(server, field, value):
    """F17."""
    for path, asked in ((COMPLETIONS, b'"prompt": "a"'), (CHAT, b'"messages": [{"role": "user", "content": "a"}]')):
        status, _, answer = server.ask(path, b'{%b, "%b": %b}' % (asked, field.encode(), value))
        check_error(answer, status, 400)
    check_well(server)
