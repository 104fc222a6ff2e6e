"""A stream says what the whole answer says, whatever is asked for and wherever the text is cut; and both are right.

The worker recites SCRIPT, whose characters are spread over tokens. The oracle is the tokenizers library's reading of
all ids together, cut where a stop string is complete first.
"""

import itertools

import pytest

SCRIPT = "Zwölf 玻璃 🦊!\n\nHuman: ещё 👩\u200d👧 done"
SPECIAL = 0
"""The id of <s>, which the worker recites as the third token."""
PROMPTS = ["The 玻", "über den"]
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.fixture(scope="module")
def reciting(make_server):
    """A server whose worker recites SCRIPT."""
    server = make_server()
    ids = server.tokenizer.encode(SCRIPT)
    server.worker.script = [*ids[:2], SPECIAL, *ids[2:]]
    assert len(server.worker.script) > len(SCRIPT) + 10  # many characters have several tokens
    return server


def expected(server, *, max_tokens, stop=(), include=False, skip=True, min_tokens=0):
    """Return text, number of tokens, finish reason and stop reason, as the whole text says."""
    decode = lambda count: server.tokenizer.decode(server.worker.script[:count], skip)  # noqa: E731
    for count in range(min_tokens + 1, max_tokens + 1):
        grown, before = decode(count).rstrip("\ufffd"), len(decode(count - 1).rstrip("\ufffd"))
        for end in range(before + 1, len(grown) + 1):
            for word in stop:
                if grown[:end].endswith(word):
                    return grown[: end if include else end - len(word)], count, "stop", word
    return decode(max_tokens), max_tokens, "length", None


def starts(server, ids, skip):
    """Return where each token begins in the text: behind the characters that were complete before."""
    return [len(server.tokenizer.decode(ids[:i], skip).rstrip("\ufffd")) for i in range(len(ids))]


def told(chunks, part, parts):
    """Join what chunks tell of each choice; `part` is where its text is."""
    joined = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            kept = joined.setdefault(choice["index"], {"text": "", "ends": [], "token_ids": [], "logprobs": {}})
            kept["text"] += choice.get("text", "") or (choice.get(part) or {}).get("content") or ""
            kept["token_ids"] += choice.get("token_ids", [])
            if choice["finish_reason"]:
                kept["ends"].append((choice["finish_reason"], choice.get("stop_reason")))
            if "prompt_token_ids" in choice:
                assert "prompt_token_ids" not in kept
                kept["prompt_token_ids"] = choice["prompt_token_ids"]
            for name in parts if choice["logprobs"] else ():
                kept["logprobs"].setdefault(name, []).extend(choice["logprobs"][name])
    return joined


def whole_and_stream(server, path, body, parts=LISTS):
    """Return what both ways of asking tell, which must be the same, usage included."""
    whole = getattr(server, path)(**body)
    chunks = getattr(server, path)(**body, stream=True, stream_options={"include_usage": True})
    assert chunks[-1]["usage"] == whole["usage"]
    streamed, at_once = told(chunks, "delta", parts), told([whole], "message", parts)
    assert streamed == at_once
    assert all(len(choice["ends"]) == 1 for choice in streamed.values())
    return at_once, whole["usage"]


STOPS = [{}, {"stop": ["\n\nHuman"]}, {"stop": ["🦊", "Hum"], "include_stop_str_in_output": True}, {"stop": "璃"}]
MATRIX = list(itertools.product([1, 2], [False, True], [None, 0, 2], STOPS, [True, False], [0, 30]))


@pytest.mark.parametrize("case", MATRIX, ids=str)
def test_a_completions_stream_says_what_the_whole_says(reciting, case):
    """D6, D7, E2 and F2."""
    n, echo, logprobs, stops, skip, min_tokens = case
    body = {"prompt": PROMPTS, "n": n, "echo": echo, "logprobs": logprobs, **stops, "min_tokens": min_tokens}
    body |= {"skip_special_tokens": skip, "return_token_ids": True, "temperature": 1, "max_tokens": 40}
    choices, usage = whole_and_stream(reciting, "complete", body)
    stop = [stops["stop"]] if isinstance(stops.get("stop"), str) else stops.get("stop", [])
    include = stops.get("include_stop_str_in_output", False)
    text, count, *end = expected(reciting, max_tokens=40, stop=stop, include=include, skip=skip, min_tokens=min_tokens)
    prompt_ids = [reciting.tokenizer.encode(prompt) for prompt in PROMPTS]
    assert usage["completion_tokens"] == 2 * n * count
    assert usage["prompt_tokens"] == sum(map(len, prompt_ids))
    assert sorted(choices) == list(range(2 * n))
    for index, choice in choices.items():
        assert choice["text"] == (PROMPTS[index // n] if echo else "") + text
        assert choice["token_ids"] == reciting.worker.script[:count]
        assert choice["prompt_token_ids"] == prompt_ids[index // n]
        assert choice["ends"] == [tuple(end)]
        if logprobs is None:
            assert choice["logprobs"] == {}
            continue
        echoed = [None, *[-p for p in range(1, len(prompt_ids[index // n]))]] if echo else []
        assert choice["logprobs"]["token_logprobs"] == [*echoed, *[-p for p in range(1, count + 1)]]
        assert {len(choice["logprobs"][name]) for name in LISTS} == {len(echoed) + count}
        begins = starts(reciting, prompt_ids[index // n], True) if echo else []
        base = len(PROMPTS[index // n]) if echo else 0
        begins += [base + start for start in starts(reciting, reciting.worker.script[:count], skip)]
        assert choice["logprobs"]["text_offset"] == begins


@pytest.mark.parametrize("case", list(itertools.product([1, 3], [None, 0, 2], STOPS, [True, False])), ids=str)
def test_a_chat_stream_says_what_the_whole_says(reciting, case):
    n, top, stops, skip = case
    body = {"n": n, **stops, "skip_special_tokens": skip, "return_token_ids": True, "temperature": 1, "max_tokens": 40}
    body |= {} if top is None else {"logprobs": True, "top_logprobs": top}
    choices, usage = whole_and_stream(reciting, "chat", body, parts=("content",))
    stop = [stops["stop"]] if isinstance(stops.get("stop"), str) else stops.get("stop", [])
    include = stops.get("include_stop_str_in_output", False)
    text, count, *end = expected(reciting, max_tokens=40, stop=stop, include=include, skip=skip)
    assert usage["completion_tokens"] == n * count
    for choice in choices.values():
        assert (choice["text"], choice["ends"]) == (text, [tuple(end)])
        assert choice["token_ids"] == reciting.worker.script[:count]
        content = choice["logprobs"].get("content", [])
        assert [entry["logprob"] for entry in content] == ([] if top is None else [-p for p in range(1, count + 1)])
        assert all(len(entry["top_logprobs"]) == top for entry in content)
        spelt = b"".join(bytes(entry["bytes"]) for entry in content).decode(errors="replace")
        assert spelt == (reciting.tokenizer.decode(reciting.worker.script[:count], False) if content else "")


def test_wherever_a_text_ends_its_last_character_is_told_once(reciting):
    """D3: an incomplete character is one U+FFFD, in the stream as in the whole."""
    ends = set()
    for count in range(1, len(reciting.worker.script) + 1):
        choices, _ = whole_and_stream(reciting, "complete", {"prompt": "a", "max_tokens": count})
        assert choices[0]["text"] == expected(reciting, max_tokens=count)[0]
        ends.add(len(choices[0]["text"]) - len(choices[0]["text"].rstrip("\ufffd")))
    assert ends == {0, 1}


@pytest.fixture
def spelling(reciting):
    """The worker recites the alphabet, one letter a token."""
    kept, letters = reciting.worker.script, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    reciting.worker.script = reciting.tokenizer.encode(letters)
    assert len(reciting.worker.script) == 26
    yield reciting
    reciting.worker.script = kept


@pytest.mark.parametrize("pace_s", [0, 0.004])
def test_nothing_of_a_stop_string_is_sent(spelling, pace_s):
    """D5: letters that might begin the stop string wait until it is known."""
    spelling.worker.pace_s = pace_s
    body = {"prompt": "a", "max_tokens": 20, "stream": True}
    pieces = [chunk["choices"][0]["text"] for chunk in spelling.complete(**body, stop="DEFGHIJ")]
    chat = [chunk["choices"][0]["delta"].get("content", "") for chunk in spelling.chat(**body, stop="DEFGHIJ")]
    nearly = [chunk["choices"][0]["text"] for chunk in spelling.complete(**body, stop=["DEFGHIX", "TUVW"])]
    spelling.worker.pace_s = 0
    assert "".join(pieces) == "".join(chat) == "ABC"
    assert "".join(nearly) == "ABCDEFGHIJKLMNOPQRST"


def test_a_stop_string_inside_the_last_token_that_may_be_made(reciting):
    """D7: both ways end at the same place, and the reason is the stop string, not the length."""
    kept = reciting.worker.script
    reciting.worker.script = ids = reciting.text_ids
    texts = [reciting.tokenizer.decode([token]) for token in ids[:30]]
    isolated = (i for i in range(3, 30) if len(texts[i]) > 2 and texts[i][1] not in "".join(texts[:i]) + texts[i][0])
    number = next(isolated)
    text = texts[number]
    choices, _ = whole_and_stream(reciting, "complete", {"prompt": "a", "max_tokens": number + 1, "stop": text[1]})
    reciting.worker.script = kept
    assert choices[0]["text"] == "".join(texts[:number]) + text[0]
    assert choices[0]["ends"] == [("stop", text[1])]


@pytest.mark.parametrize("path", ["complete", "chat"])
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_a_stream_tells_its_usage_only_when_asked_to(reciting, path, options):
    """D11."""
    body = {"prompt": "a"} if path == "complete" else {}
    chunks = getattr(reciting, path)(**body, max_tokens=3, stream=True, stream_options=options)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


def test_a_prompt_that_was_cached_has_the_same_log_probabilities(reciting):
    """E3 and E4: 33 tokens, in a stream and whole, four times: none for the first token, then one for each."""
    body = {"prompt": list(range(100, 133)), "max_tokens": 2, "echo": True, "logprobs": 1}
    answers = [whole_and_stream(reciting, "complete", body)[0][0]["logprobs"] for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0]["token_logprobs"] == [None, *[-p for p in range(1, 33)], -1, -2]


@pytest.fixture
def ending(reciting):
    """The worker says </s>, whose id is 1, as its eleventh token."""
    kept = reciting.worker.script
    reciting.worker.script = [*kept[:10], 1, *kept[10:]]
    yield reciting
    reciting.worker.script = kept


ENDS = [
    # (fields, tokens made, whether the last one is in the text, its reason)
    ({}, 11, False, ("stop", None)),
    ({"include_stop_str_in_output": True}, 11, True, ("stop", None)),
    ({"ignore_eos": True}, 20, True, ("length", None)),
    ({"ignore_eos": True, "stop_token_ids": [1]}, 11, False, ("stop", 1)),
    ({"stop_token_ids": [SPECIAL]}, 3, False, ("stop", SPECIAL)),
    ({"stop_token_ids": [SPECIAL], "include_stop_str_in_output": True}, 3, True, ("stop", SPECIAL)),
    ({"max_tokens": 11}, 11, False, ("stop", None)),
    ({"max_tokens": 10}, 10, True, ("length", None)),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: str(end[0]))
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("path", ["complete", "chat"])
def test_a_token_that_ends_the_answer_ends_stream_and_whole_alike(ending, path, skip, end):
    """D3 and D7: with the reason that it was, and in the text only where it was asked for."""
    fields, count, is_in_text, reason = end
    body = {"max_tokens": 20, "n": 2, "temperature": 1, "return_token_ids": True, "skip_special_tokens": skip, **fields}
    body |= {"prompt": "a", "logprobs": 1} if path == "complete" else {"logprobs": True}
    choices, usage = whole_and_stream(ending, path, body, parts=LISTS if path == "complete" else ("content",))
    assert usage["completion_tokens"] == 2 * count
    for choice in choices.values():
        assert choice["text"] == ending.tokenizer.decode(ending.worker.script[: count - (not is_in_text)], skip)
        assert choice["token_ids"] == ending.worker.script[:count]
        assert choice["ends"] == [reason]
        assert {len(values) for values in choice["logprobs"].values()} == {count}


@pytest.mark.parametrize("path", ["complete", "chat"])
def test_every_token_may_have_a_chunk_of_its_own(reciting, path):
    """D3 and D5: slow steps are told one by one; characters and stop strings that they cut come out whole."""
    reciting.worker.pace_s = 0.003
    body = {"max_tokens": 40, "stop": ["Human: x", "e!"], "return_token_ids": True, "logprobs": 1, "prompt": "a"}
    body |= {} if path == "complete" else {"prompt": None, "logprobs": True}
    chunks = getattr(reciting, path)(**{name: value for name, value in body.items() if value}, stream=True)
    reciting.worker.pace_s = 0
    counts = [len(choice["token_ids"]) for chunk in chunks for choice in chunk["choices"] if "token_ids" in choice]
    texts = [
        choice.get("text") or choice.get("delta", {}).get("content") or ""
        for chunk in chunks
        for choice in chunk["choices"]
    ]
    assert sum(counts) == 40
    assert counts.count(1) > 30
    assert "".join(texts) == expected(reciting, max_tokens=40)[0]
    assert not any("\ufffd" in text for text in texts[:-1])
