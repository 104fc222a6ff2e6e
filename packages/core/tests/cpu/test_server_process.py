"""`modulm serve` as a process on a tiny model: the official client, signals, an engine that is killed, what it refuses.

At the end, cases that were reported of other engines, by their numbers in our collection. Texts are compared with those
of `LLM` in this process.
"""

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import openai
import psutil
import pytest

from modulm import LLM, SamplingParams
from modulm.plugins import discovery

PROMPT = "The quick brown fox"


@pytest.fixture(scope="module")
def model(tiny_folder):
    """The model, with what `core_alone` sets for each test set for the module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_PLUGINS", "")
        discovery.reset()
        yield tiny_folder


@pytest.fixture(scope="module")
def told(model):
    """What `LLM` says, greedily."""
    llm = LLM(model=model, num_kv_blocks=400, max_num_seqs=16)
    params = SamplingParams(temperature=0, max_tokens=12)
    answers = {
        "text": llm.generate(PROMPT, params)[0].outputs[0].text,
        "chat": llm.chat([{"role": "user", "content": PROMPT}], params)[0].outputs[0].text,
    }
    llm.shutdown()
    return answers


def test_the_official_client_completes(server, told):
    client = server.client()
    assert [each.id for each in client.models.list()] == ["tiny", "also"]
    assert client.models.retrieve("also").id == "also"
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=12, temperature=0)
    assert answer.choices[0].text == told["text"]
    assert answer.usage.completion_tokens <= 12
    pieces = list(client.completions.create(model="tiny", prompt=PROMPT, max_tokens=12, temperature=0, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == told["text"]


def test_the_official_client_chats(server, told):
    messages = [{"role": "user", "content": PROMPT}]
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_completion_tokens": 12}
    client = server.client()
    answer = client.chat.completions.create(**body, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == told["chat"]
    assert answer.choices[0].message.role == "assistant"
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
    assert all(len(each.top_logprobs) == 2 for each in answer.choices[0].logprobs.content)
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == told["chat"]
    assert chunks[-1].usage == answer.usage
    with client.chat.completions.stream(**body) as stream:
        assert "".join(event.delta for event in stream if event.type == "content.delta") == told["chat"]


def test_the_official_client_learns_what_is_wrong(server):
    client = server.client()
    with pytest.raises(openai.NotFoundError, match="does not exist") as found:
        client.completions.create(model="gpt-5", prompt="a")
    assert (found.value.code, found.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="a", temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="257|256"):
        client.completions.create(model="tiny", prompt=[5] * 256)


def test_the_plugins_of_every_process_are_listed(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v1/plugins") as answer:
        assert isinstance(json.load(answer)["data"], list)


def test_sigterm_drains_and_leaves_no_process(start_server):
    server = start_server()
    engine = server.engine()
    texts = []

    def ask():
        answer = server.client().completions.create(model=server.model, prompt=PROMPT, max_tokens=200)
        texts.append(answer.choices[0].finish_reason)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while server.load() + len(texts) < 8:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert server.end(signal.SIGTERM) == 0, "".join(server.lines)
    for thread in threads:
        thread.join(10)
    assert len(texts) == 8
    assert not psutil.pid_exists(engine.pid)


def test_an_engine_that_is_killed_comes_back(start_server):
    """Streams end with an error event, then requests get 503 and when to come again, then all is well."""
    server = start_server("--engine-restarts=2")
    client = server.client()
    first = server.engine()
    ends = []

    def stream():
        body = {"prompt": PROMPT, "max_tokens": 230, "extra_body": {"ignore_eos": True}}
        try:
            for _ in client.completions.create(model=server.model, stream=True, **body):
                begun.set()
            ends.append("done")
        except openai.APIError as error:
            ends.append(error)

    begun = threading.Event()
    threads = [threading.Thread(target=stream) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert begun.wait(20)
    os.kill(first.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(20)
    assert len(ends) == 6
    assert any(isinstance(end, openai.APIError) for end in ends)
    seen, refusals = set(), []
    while (status := server.status("/ready")) != 200:
        seen.add(status)
        try:
            client.completions.create(model=server.model, prompt="a", max_tokens=1)
        except openai.InternalServerError as error:
            refusals.append((error.status_code, int(error.response.headers["retry-after"]) >= 1))
        time.sleep(0.05)
    assert seen == {503}
    assert set(refusals) == {(503, True)}
    assert server.status("/health") == 200
    assert client.completions.create(model=server.model, prompt="a", max_tokens=1).choices
    assert server.engine().pid != first.pid


def test_a_file_of_options_is_overruled_by_the_command_line(model, tmp_path, start_server):
    file = tmp_path / "options.yaml"
    file.write_text("served-model-name: [one, two]\napi_key: secret\nmax-model-len: 100\nenforce-eager: true\n")
    server = start_server(f"--config={file}", "--max-model-len=90", "--enable-request-id-headers")
    listed = server.client(api_key="secret").models.list().data
    assert [(each.id, each.max_model_len) for each in listed] == [("one", 90), ("two", 90)]
    with pytest.raises(openai.AuthenticationError):
        server.client(api_key="other").models.list()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "No model is asked for"),
        (["a", "--model", "b"], "'a' is asked for too"),
        (["a", "--prot=1"], "'--prot' is unknown"),
        (["a", "--port=99999"], "port=99999 is refused"),
        (["a", "--config=/nowhere.yaml"], "cannot be read"),
        (["a", "--middleware=nowhere.at_all"], "nowhere"),
        (["/nowhere"], "nowhere"),
        (["a", "--ssl-keyfile=k"], "ssl_certfile"),
        (["a", "--default-chat-template-kwargs=[1]"], "JSON object"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(args, message, capsys, monkeypatch):
    from modulm.cli import main

    words = ["serve", *args, "--host=127.0.0.1", "--in-process"]
    try:
        status = main(words if "--port=99999" in args else [*words, "--port=0"])
    except SystemExit as left:
        status = left.code
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert status == 2
    assert message in said


def test_a_missing_module_of_the_extra_is_named(monkeypatch, capsys):
    from modulm.cli import main

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "a"]) == 2
    assert "pip install 'modulm-core[serve]'" in capsys.readouterr().err


def complete(server, **body):
    """Choices of a completion, with vLLM's own fields as well."""
    known = {"n", "seed", "stop", "temperature", "logprobs", "logit_bias"}
    usual = {name: body.pop(name) for name in list(body) if name in known}
    body = {"max_tokens": 8, **body}
    prompt = body.pop("prompt", PROMPT)
    return server.client().completions.create(model="tiny", prompt=prompt, extra_body=body, **usual).choices


def together(*calls):
    """Run all at once and return their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def texts(choices):
    return [choice.text for choice in choices]


def test_the_end_waits_for_min_tokens_with_two_ends_of_sequence(server):
    """D8: both ids are by far the likeliest, and masked until five tokens are there."""
    bias = {"1": 90, "5": 100}
    ends = complete(server, temperature=0, logit_bias=bias, min_tokens=5, max_tokens=20, return_token_ids=True)[0]
    assert ends.finish_reason == "stop"
    assert len(ends.token_ids) == 6
    assert not {1, 5} & set(ends.token_ids[:5])
    at_once = complete(server, temperature=0, logit_bias=bias, max_tokens=20, return_token_ids=True)[0]
    assert len(at_once.token_ids) == 1


def test_bad_words_hold_for_every_choice(server):
    """F4: of two allowed tokens one is bad."""
    ids = [complete(server, prompt=letter, max_tokens=1, return_token_ids=True)[0].prompt_token_ids for letter in "ab"]
    body = {"allowed_token_ids": [one for (one,) in ids], "temperature": 1, "n": 2, "seed": 1}
    assert set("".join(texts(complete(server, **body)))) == {"a", "b"}
    assert texts(complete(server, **body, bad_words=["b"])) == ["a" * 8] * 2


def test_neighbours_in_a_batch_change_nothing(server):
    """F14, F18 and F19: greedy beside random, masked and penalised."""
    bodies = [
        {"temperature": 0},
        {"temperature": 1, "top_k": 5, "seed": 7},
        {"temperature": 0, "repetition_penalty": 2.0},
        {"temperature": 1, "top_k": 1, "seed": 99},
        {"temperature": 1, "allowed_token_ids": [20, 21, 22], "seed": 3},
        {"temperature": 0, "logit_bias": {"30": -100.0}},
    ]
    alone = [texts(complete(server, **body)) for body in bodies]
    batched = together(*[partial(complete, server, **body) for body in bodies * 3])
    assert list(map(texts, batched)) == alone * 3


def test_top_k_of_0_and_of_minus_1_are_off(server):
    """F15."""
    off = [texts(complete(server, temperature=1, seed=5, max_tokens=20, top_k=k)) for k in (0, -1, 10**6)]
    assert off[0] == off[1] == off[2]


@pytest.mark.parametrize("temperature", [1e-4, 1e-12])
def test_tiny_temperatures_are_greedy(server, temperature):
    """F16."""
    assert texts(complete(server, temperature=temperature)) == texts(complete(server, temperature=0))


def test_values_are_the_same_from_run_to_run(server):
    """E5: log-probabilities of one request, alone and beside others."""
    body = {"temperature": 0, "logprobs": 3}
    first = complete(server, **body)[0].logprobs
    for choices in together(*[partial(complete, server, **body)] * 4):
        assert choices[0].logprobs.tokens == first.tokens
        differences = zip(choices[0].logprobs.token_logprobs, first.token_logprobs, strict=True)
        assert all(abs(one - other) < 1e-4 for one, other in differences)


def test_an_id_may_be_used_again_right_after_its_request_was_left(server):
    """F22: a late abort of the first must not end the second."""
    body = {"request_id": "again", "ignore_eos": True, "max_tokens": 200}
    for _ in range(10):
        stream = server.client().completions.create(model="tiny", prompt=PROMPT, stream=True, extra_body=body)
        next(iter(stream))
        stream.close()
        (choice,) = complete(server, **{**body, "max_tokens": 5})
        assert choice.finish_reason == "length"
