"""The official `openai` client, unmodified, synchronous and asynchronous, against a server process: what it can ask,
what it gets, and which of its errors it raises. Greedy texts are compared with `LLM`'s in `test_server_process.py`.
"""

import asyncio
import time

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

PROMPT = "The quick brown fox"
MESSAGES = [{"role": "user", "content": PROMPT}]
TEXT = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
CHAT = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def guarded(tiny_folder, server):
    """A server with a key, of which one request at a time is taken."""
    made = type(server)(tiny_folder, "--served-model-name=tiny", "--api-key=right", "--max-concurrent-reqs-per-key=1")
    yield made.wait_until_ready()
    made.end(15, 15)


def test_the_asynchronous_client_gets_what_the_synchronous_one_gets(server, client):
    text = client.completions.create(**TEXT).choices[0].text
    said = client.chat.completions.create(**CHAT).choices[0].message.content
    until = lambda stop: said.partition(stop)[0]  # noqa: E731

    async def ask():
        async with server.client(openai.AsyncOpenAI) as other:
            assert [model.id async for model in other.models.list()] == ["tiny", "also"]
            assert (await other.models.retrieve("tiny")).id == "tiny"
            wholes = await asyncio.gather(*[other.completions.create(**TEXT) for _ in range(6)])
            assert {answer.choices[0].text for answer in wholes} == {text}
            chat = await other.chat.completions.create(**CHAT)
            assert chat.choices[0].message.content == said
            stream = await other.completions.create(**TEXT, **WITH_USAGE)
            chunks = [chunk async for chunk in stream]
            assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == text
            assert chunks[-1].usage == wholes[0].usage
            stop = next(letter for letter in said[1:] if letter.isascii())
            async with other.chat.completions.stream(**CHAT, stop=stop) as events:
                assert "".join([event.delta async for event in events if event.type == "content.delta"]) == until(stop)
                final = await events.get_final_completion()  # an error when it ends for its length
            assert final.choices[0].message.content == until(stop)

    asyncio.run(ask())


def test_answers_are_what_the_clients_types_say(client):
    """The client itself checks nothing; its types do."""
    logged = {"logprobs": True, "top_logprobs": 2}
    Completion.model_validate_json(client.completions.with_raw_response.create(**TEXT, logprobs=2).content)
    ChatCompletion.model_validate_json(client.chat.completions.with_raw_response.create(**CHAT, **logged).content)
    Model.model_validate_json(client.models.with_raw_response.retrieve("tiny").content)
    with client.chat.completions.with_streaming_response.create(**CHAT, **logged, **WITH_USAGE) as answer:
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events.pop() == "[DONE]"
    assert len([ChatCompletionChunk.model_validate_json(event) for event in events]) > 2


def test_a_stream_that_is_left_early_holds_nothing(server, client):
    """F24: the client closes its connection, and all places are free again."""
    for _ in range(20):
        with client.completions.create(
            **{**TEXT, "max_tokens": 200}, stream=True, extra_body={"ignore_eos": True}
        ) as s:
            next(iter(s))
    deadline = time.monotonic() + 10
    while server.load():
        assert time.monotonic() < deadline
        time.sleep(0.01)


OPTIONS = [
    {},
    {"n": 3, "temperature": 1, "seed": 4},
    {"logprobs": 0},
    {"logprobs": 3, "echo": True},
    {"n": 2, "temperature": 1.5, "seed": 9, "logprobs": 2, "echo": True},
    {"stop": ["e", "th"]},
    {"stop": "e", "logprobs": 1, "min_tokens": 6, "include_stop_str_in_output": True},
    {"skip_special_tokens": False, "logit_bias": {"0": 4, "200": 3, "130": 3}, "frequency_penalty": 1.5},
    {"prompt": ["a", "Съешь", "玻璃"], "echo": True, "logprobs": 1},
    {"prompt": [[9, 30, 200, 131], [9]], "n": 2, "temperature": 1, "seed": 1, "ignore_eos": True},
    {"max_tokens": 0, "echo": True, "logprobs": 2},
]


def asked(create, body):
    """Ask once for a whole answer and once for a stream; return both as {index: what is told} and usage."""
    usual = {"model", "prompt", "messages", "n", "temperature", "max_tokens", "stop", "seed", "echo", "logprobs"}
    usual |= {"logit_bias", "frequency_penalty", "top_logprobs"}
    extra = {name: value for name, value in body.items() if name not in usual} | {"return_token_ids": True}
    known = {name: value for name, value in body.items() if name in usual}
    whole = create(**known, extra_body=extra)
    chunks = list(create(**known, extra_body=extra, **WITH_USAGE))
    return (joined([whole]), whole.usage), (joined(chunks), chunks[-1].usage)


def joined(answers):
    told = {}
    for answer in answers:
        for choice in answer.choices:
            kept = told.setdefault(choice.index, {"text": "", "token_ids": [], "logprobs": [], "ends": []})
            message = getattr(choice, "message", None) or getattr(choice, "delta", None)
            kept["text"] += (message.content or "") if message else choice.text
            kept["token_ids"] += choice.token_ids or [] if hasattr(choice, "token_ids") else []
            kept["ends"] += [(choice.finish_reason, choice.stop_reason)] if choice.finish_reason else []
            kept["logprobs"] += told_logprobs(choice.logprobs)
    return told


def told_logprobs(logprobs):
    """One tuple per token, whichever of OpenAI's two forms they have."""
    if logprobs is None:
        return []
    if hasattr(logprobs, "content"):
        tops = [[(top.token, near(top.logprob)) for top in one.top_logprobs] for one in logprobs.content]
        return [(one.token, near(one.logprob), top) for one, top in zip(logprobs.content, tops, strict=True)]
    values = zip(logprobs.tokens, logprobs.text_offset, logprobs.token_logprobs, logprobs.top_logprobs, strict=True)
    return [
        (token, offset, near(value), {name: near(each) for name, each in (top or {}).items()})
        for token, offset, value, top in values
    ]


def near(value):
    return None if value is None else pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_completions_stream_is_the_whole_answer(client, options):
    """D7, E2, E5, F2 and F7, with a model that samples."""
    whole, stream = asked(client.completions.create, {**TEXT, **options})
    assert stream == whole
    told, usage = whole
    prompts = options["prompt"] if isinstance(options.get("prompt"), list) else [PROMPT]
    assert len(told) == options.get("n", 1) * len(prompts)
    assert usage.completion_tokens == sum(len(choice["token_ids"]) for choice in told.values())
    for choice in told.values():
        assert len(choice["ends"]) == 1
        if "logprobs" in options and not options.get("echo"):
            assert len(choice["logprobs"]) == len(choice["token_ids"])


@pytest.mark.parametrize("options", [o for o in OPTIONS if not {"prompt", "echo"} & set(o)], ids=str)
def test_a_chats_stream_is_the_whole_answer(client, options):
    options = dict(options)
    if "logprobs" in options:
        options |= {"top_logprobs": options["logprobs"], "logprobs": True}
    whole, stream = asked(client.chat.completions.create, {**CHAT, **options})
    assert stream == whole
    for choice in whole[0].values():
        assert len(choice["logprobs"]) == (len(choice["token_ids"]) if "logprobs" in options else 0)


def raised(server, body, **options):
    """Return the errors of all four ways of asking."""
    errors = []

    async def ask(stream):
        async with server.client(openai.AsyncOpenAI, **options) as client:
            await client.completions.create(**body, stream=stream)

    for stream in (False, True):
        with pytest.raises(openai.APIStatusError) as error:
            server.client(**options).completions.create(**body, stream=stream)
        errors.append(error.value)
        with pytest.raises(openai.APIStatusError) as error:
            asyncio.run(ask(stream))
        errors.append(error.value)
    return errors


@pytest.mark.parametrize(
    ("change", "kind", "param", "code"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "model", "model_not_found"),
        ({"prompt": ""}, openai.BadRequestError, "prompt", None),
        ({"prompt": [5] * 256}, openai.BadRequestError, "prompt", None),
        ({"logit_bias": {"191222": 1}}, openai.BadRequestError, "logit_bias", None),
        ({"logprobs": 6}, openai.BadRequestError, "logprobs", None),
        ({"extra_body": {"structured_outputs": {"regex": "a"}}}, openai.BadRequestError, "structured_outputs", None),
    ],
    ids=str,
)
def test_what_is_wrong_is_an_error_of_the_clients_kind(server, client, change, kind, param, code):
    """F6, F9, F11 and C2: the field is named, and the next request is served."""
    for error in raised(server, {**TEXT, **change}):
        assert type(error) is kind
        assert (error.param, error.code) == (param, code)
        assert error.body["message"]
    assert client.completions.create(**TEXT).choices


def test_a_wrong_key_is_an_authentication_error(guarded):
    for error in raised(guarded, TEXT, api_key="wrong"):
        assert type(error) is openai.AuthenticationError
    with pytest.raises(openai.AuthenticationError):
        guarded.client(api_key="wrong").models.list()
    assert guarded.client(api_key="right").completions.create(**TEXT).choices


def test_one_request_too_many_is_a_rate_limit_error_that_the_client_waits_out(guarded):
    """`Retry-After` is what the client waits for when it may try again."""
    long = {**TEXT, "max_tokens": 230, "extra_body": {"ignore_eos": True}}
    with guarded.client(api_key="right").completions.create(**long, stream=True) as held:
        next(iter(held))
        for error in raised(guarded, TEXT, api_key="right"):
            assert type(error) is openai.RateLimitError
            assert error.code == "rate_limit_exceeded"
            assert int(error.response.headers["retry-after"]) == 1
    assert guarded.client(api_key="right", max_retries=2).completions.create(**TEXT).choices
