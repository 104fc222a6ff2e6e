"""/v1/completions over HTTP: text, choices, echo, log-probabilities, usage and streams, against the recited text."""

import threading

import pytest

from modulm.server.completions import CompletionWriter


def joined(chunks, index=0):
    return "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def test_a_prompt_is_completed(server):
    answer = server.complete(prompt="Hello", max_tokens=9)
    assert answer["object"] == "text_completion"
    assert answer["model"] == "reciter"
    assert answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice["text"] == server.text(9)
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    prompt = len(server.tokenizer.encode("Hello"))
    assert answer["usage"] == {"prompt_tokens": prompt, "completion_tokens": 9, "total_tokens": prompt + 9}


def test_without_a_limit_sixteen_tokens_are_made_as_openai_does(server):
    assert server.complete(prompt="Hello")["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("cut", [1, 2, 3, 30])
def test_a_stream_says_what_the_whole_says(server, cut):
    body = {"prompt": "Hello", "max_tokens": cut, "stop": ["dog"]}
    whole = server.complete(**body)["choices"][0]
    chunks = server.complete(**body, stream=True)
    assert joined(chunks) == whole["text"]
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == whole["finish_reason"]
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])
    assert len({c["id"] for c in chunks}) == 1


def test_a_stop_string_ends_the_text_and_is_named(server):
    (choice,) = server.complete(prompt="a", max_tokens=100, stop=["lazy", "fox"])["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("The quick brown ", "stop", "fox")
    (choice,) = server.complete(prompt="a", max_tokens=100, stop="fox", include_stop_str_in_output=True)["choices"]
    assert choice["text"] == "The quick brown fox"


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_and_choices_are_numbered_in_order(server, stream):
    """F2: choices never overwrite each other."""
    body = {"prompt": ["one", "two", "three"], "n": 2, "temperature": 1, "max_tokens": 5, "echo": True}
    answer = server.complete(**body, stream=stream)
    texts = {}
    for chunk in answer if stream else [answer]:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    said = server.text(5)
    assert texts == {i: prompt + said for i, prompt in enumerate(["one", "one", "two", "two", "three", "three"])}


@pytest.mark.parametrize("form", ["text", "ids", "texts", "lists of ids"])
def test_a_prompt_may_come_in_four_forms(server, form):
    ids = server.tokenizer.encode("The fox")
    prompt = {"text": "The fox", "ids": ids, "texts": ["The fox"], "lists of ids": [ids]}[form]
    answer = server.complete(prompt=prompt, max_tokens=3, echo=True)
    assert answer["choices"][0]["text"] == "The fox" + server.text(3)
    assert answer["usage"]["prompt_tokens"] == len(ids)


def test_usage_comes_once_at_the_end_of_a_stream_when_asked_for(server):
    body = {"prompt": "Hello", "max_tokens": 4, "stream": True}
    plain = server.complete(**body)
    assert all("usage" not in chunk for chunk in plain)
    asked = server.complete(**body, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in asked[:-1]] == [None] * (len(asked) - 1)
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"]["completion_tokens"] == 4
    running = server.complete(**body, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in running]
    assert counts == sorted(counts)  # steps may be told together
    assert counts[-2:] == [4, 4]


def test_empty_stream_options_ask_for_no_usage(server):
    """D11."""
    chunks = server.complete(prompt="a", max_tokens=2, stream=True, stream_options={})
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_echoed_log_probabilities_are_aligned_with_the_text(server, stream, n):
    """E1 and E2: lists have one entry per token, the first prompt token none, and minus infinity is a number."""
    prompt = "The quick zebra"
    ids = server.tokenizer.encode(prompt)
    body = {"prompt": prompt, "max_tokens": 6, "echo": True, "logprobs": 3, "n": n, "temperature": 1}
    answer = server.complete(**body, stream=stream)
    for index in range(n):
        lists = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        text = ""
        for chunk in answer if stream else [answer]:
            for choice in chunk["choices"]:
                if choice["index"] == index:
                    text += choice["text"]
                    for name, values in lists.items():
                        values += (choice["logprobs"] or {}).get(name, [])
        assert "".join(lists["tokens"]) == text == prompt + server.text(6)
        assert lists["token_logprobs"] == [None, *[-float(p) for p in range(1, len(ids))], -1, -2, -3, -4, -5, -6]
        assert lists["text_offset"] == [len("".join(lists["tokens"][:i])) for i in range(len(lists["tokens"]))]
        assert lists["top_logprobs"][0] is None
        assert all(len(top) == 3 and -9999.0 in top.values() for top in lists["top_logprobs"][1:])


def test_log_probabilities_of_none_but_the_chosen_token(server):
    lists = server.complete(prompt="a", max_tokens=2, logprobs=0)["choices"][0]["logprobs"]
    assert [list(top.values()) for top in lists["top_logprobs"]] == [[-1.0], [-2.0]]
    lists = server.complete(prompt="a", max_tokens=2, logprobs=1, return_tokens_as_token_ids=True)["choices"][0]
    assert lists["logprobs"]["tokens"] == [f"token_id:{i}" for i in server.text_ids[:2]]


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_score_the_prompt(server, stream):
    """F7: max_tokens of 0 with echo."""
    body = {"prompt": "The fox", "max_tokens": 0, "echo": True, "logprobs": 1, "stream": stream}
    answer = server.complete(**body, **({"stream_options": {"include_usage": True}} if stream else {}))
    first = answer[0] if stream else answer
    assert first["choices"][0]["text"] == "The fox"
    assert len(first["choices"][0]["logprobs"]["tokens"]) == len(server.tokenizer.encode("The fox"))
    assert (answer[-1] if stream else answer)["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_end_by_length_whatever_the_one_that_is_made(server, stream):
    body = {"prompt": "The fox", "max_tokens": 0, "stop_token_ids": [server.text_ids[0]], "stream": stream}
    answer = server.complete(**body)
    choices = [choice for chunk in (answer if stream else [answer]) for choice in chunk["choices"]]
    assert [(each["finish_reason"], each["stop_reason"]) for each in choices][-1] == ("length", None)


def test_prompt_log_probabilities_in_vllms_form(server):
    ids = server.tokenizer.encode("The fox")
    told = server.complete(prompt="The fox", max_tokens=1, prompt_logprobs=2)["choices"][0]["prompt_logprobs"]
    assert told[0] is None
    assert [told[i][str(ids[i])]["logprob"] for i in range(1, len(ids))] == [-float(i) for i in range(1, len(ids))]
    assert all(min(entry["logprob"] for entry in position.values()) == -9999.0 for position in told[1:])


@pytest.mark.parametrize("asked", [{"prompt_logprobs": 2}, {"echo": True, "logprobs": 2, "stream": True}, {}], ids=str)
def test_what_tells_of_prompts_is_written_in_a_thread(server, monkeypatch, asked):
    """Twenty alternatives for each of 4,096 tokens held up all streams for half a second."""
    threads = set()
    choices = CompletionWriter.choices

    def watched(self, number, output):
        if output.prompt_logprobs or not asked:
            threads.add(threading.current_thread())
        return choices(self, number, output)

    monkeypatch.setattr(CompletionWriter, "choices", watched)
    server.complete(prompt="The fox", max_tokens=2, **asked)
    assert len(threads) == 1 and (server.thread in threads) == (not asked)


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_returned_when_asked_for(server, stream):
    answer = server.complete(prompt="The fox", max_tokens=4, return_token_ids=True, stream=stream)
    choices = [chunk["choices"][0] for chunk in (answer if stream else [answer])]
    assert choices[0]["prompt_token_ids"] == server.tokenizer.encode("The fox")
    assert sum([choice["token_ids"] for choice in choices], []) == server.text_ids[:4]
    assert all("prompt_token_ids" not in choice for choice in choices[1:])


def test_a_request_id_is_a_label_that_may_be_used_again(server):
    first = server.complete(prompt="a", max_tokens=1, request_id="mine")
    again = server.complete(prompt="a", max_tokens=1, request_id="mine")
    assert first["id"] == again["id"] == "cmpl-mine"
    status, _, answer = server.ask("/v1/completions", {"prompt": "a"}, {"X-Request-Id": "theirs"})
    assert (status, answer["id"]) == (200, "cmpl-theirs")


def test_other_fields_of_openai_clients_are_passed_over(server):
    server.complete(prompt="a", max_tokens=1, user="u", metadata={"a": "b"}, store=True, service_tier="auto", best_of=1)
    server.complete(prompt="a", max_tokens=1, mirostat_eta=0.1, suffix=None, response_format={"type": "text"})


def test_prompts_may_be_cut_and_keep_out_special_tokens(server):
    answer = server.complete(prompt="one two three four", max_tokens=1, truncate_prompt_tokens=2)
    assert answer["usage"]["prompt_tokens"] == 2
