"""The example `logits_processor`: requests over HTTP that force tokens get them, beside others that do not."""

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest


def post(server, path, **body):
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture
def complete(serve, tiny_llama):
    server = serve(tiny_llama, "--num-kv-blocks=100", "--max-num-seqs=8")

    def ask(prompt, forced=None, **options):
        xargs = {} if forced is None else {"vllm_xargs": {"forced_token_ids": forced}}
        body = {"model": str(tiny_llama), "prompt": prompt, "max_tokens": 12, "return_token_ids": True}
        return post(server, "/v1/completions", **body, ignore_eos=True, **xargs, **options)

    return ask


def test_forced_tokens_are_forced(complete):
    def ids(answer):
        assert answer[0] == 200, answer
        return answer[1]["choices"][0]["token_ids"]

    free = ids(complete([3, 4, 5], temperature=0))
    forced = [(5 * i) % 28 for i in range(1, 9)]
    assert ids(complete([3, 4, 5], forced, temperature=0))[:8] == forced != free[:8]
    assert ids(complete([3, 4, 5], forced, temperature=1.5, seed=1))[:8] == forced

    wanted = [[n, n + 1, n + 2] * 3 for n in range(2, 7)]
    with ThreadPoolExecutor(6) as several:  # at once, each with its own, one without
        found = list(several.map(lambda each: ids(complete([3, 4, 5], each, temperature=0)), [*wanted, None]))
    assert [tokens[:9] for tokens in found[:5]] == wanted and found[5] == free

    status, answer = complete([3], "no list")
    assert status == 400 and "forced_token_ids='no list' is no list of token ids" in answer["error"]["message"]
