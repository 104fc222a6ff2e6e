"""`modulm bench serve` against a small server whose delays are known: they are what must be measured."""

import asyncio
import json
import re
import statistics
import sys
import threading

import pytest

from modulm.cli import main

pytest.importorskip("aiohttp", reason="the extra bench is not installed")
from modulm.cli.bench.load import due_times  # noqa: E402


class FakeServer:
    """Answers completions and chats with one piece of text per token, after `first_s` and then every `gap_s`.

    Attributes:
        requests: (seconds since the first, path, headers, body) in order of arrival.
        behaviour: "well", or how it misbehaves.
        most_at_once: Streams open at the same time, at most.
    """

    def __init__(self):
        self.first_s, self.gap_s, self.behaviour, self.usage = 0.0, 0.0, "well", True
        self.requests, self.num_open, self.most_at_once, self.began = [], 0, 0, None
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.thread.start()
        self.ready.wait()

    async def _serve(self):
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        await self.over.wait()
        server.close()

    def close(self):
        self.loop.call_soon_threadsafe(self.over.set)
        self.thread.join()

    async def _connection(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in head[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._answer(head[0].split()[1], headers, json.loads(body or b"{}"), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, path, headers, body, writer):
        if path == "/v1/models":
            return _whole(writer, 200, {"data": [{"id": "org/fake"}]})
        now = self.loop.time()
        self.began = self.began or now
        self.requests.append((now - self.began, path, headers, body))
        if self.behaviour == "refuses":
            return _whole(writer, 400, {"error": {"message": "no such model"}})
        self.num_open += 1
        self.most_at_once = max(self.most_at_once, self.num_open)
        await self._stream("chat" in path, body, writer)
        self.num_open -= 1
        return None

    async def _stream(self, is_chat, body, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        if is_chat:
            _event(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        await asyncio.sleep(self.first_s)
        for number in range(body["max_tokens"]):
            if number:
                await asyncio.sleep(self.gap_s)
            piece = {"delta": {"content": "x"}} if is_chat else {"text": "x"}
            _event(writer, {"choices": [{"index": 0, **piece}]})
            if self.behaviour == "breaks":
                return writer.close()
            if self.behaviour == "fails":
                _event(writer, {"error": {"message": "the engine is gone"}})
        if self.usage:
            _event(writer, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": body["max_tokens"]}})
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        return None


def _whole(writer, status, body):
    data = json.dumps(body).encode()
    writer.write(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(data)))
    writer.write(data)


def _event(writer, body):
    _chunk(writer, b"data: " + json.dumps(body).encode() + b"\n\n")


def _chunk(writer, data):
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


@pytest.fixture
def server():
    made = FakeServer()
    yield made
    made.close()


@pytest.fixture
def bench(server, capsys):
    """Run the command against the server: status, result, stderr."""

    def run(*words, status=0):
        base = [f"--base-url=http://127.0.0.1:{server.port}/", "--json", "--random-input-len=5", "--num-prompts=4"]
        try:
            found = main(["bench", "serve", *base, *words])
        except SystemExit as left:
            found = left.code
        out, err = capsys.readouterr()
        assert found == status, err
        return json.loads(out) if out else None, err

    return run


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_delays_of_the_server_are_what_is_measured(server, bench, backend):
    server.first_s, server.gap_s = 0.12, 0.03
    result, _ = bench(f"--backend={backend}", "--random-output-len=6")
    assert (result["completed"], result["failed"], result["model_id"]) == (4, 0, "org/fake")
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (28, 24)
    expected = {"ttft": 120, "itl": 30, "tpot": 30, "e2el": 120 + 5 * 30}
    for name, ms in expected.items():
        assert result[f"median_{name}_ms"] == pytest.approx(ms, rel=0.15, abs=8), name
        assert result[f"p99_{name}_ms"] >= result[f"p50_{name}_ms"] == result[f"median_{name}_ms"]
    assert result["mean_ttft_ms"] >= 119 and result["mean_e2el_ms"] >= 269
    assert result["duration"] >= 0.27
    assert result["output_throughput"] == pytest.approx(24 / result["duration"])
    assert result["request_throughput"] == pytest.approx(4 / result["duration"])
    assert result["total_token_throughput"] == pytest.approx(52 / result["duration"])


def test_no_more_than_max_concurrency_are_open_at_once(server, bench):
    server.first_s = 0.03
    result, _ = bench("--num-prompts=12", "--max-concurrency=3", "--random-output-len=1")
    assert server.most_at_once == 3 and result["max_waited_ms"] >= 3 * 30
    bench("--num-prompts=12", "--random-output-len=1")
    assert server.most_at_once == 12


def test_requests_come_when_they_are_due_however_slow_the_server_is(server, bench):
    """An open loop: nothing waits for answers, which take five times as long as the gaps between arrivals."""
    server.first_s = 0.1
    bench("--num-prompts=25", "--request-rate=50", "--seed=3", "--random-output-len=1")
    due = due_times(25, 50.0, 1.0, 3)
    late = [when - planned for (when, *_), planned in zip(server.requests, due, strict=True)]
    assert statistics.median(late) < 0.02 and min(late) > -0.02
    assert server.most_at_once > 2


@pytest.mark.parametrize("burstiness", [1.0, 0.25, 4.0])
def test_gaps_between_arrivals_have_the_mean_and_spread_of_their_distribution(burstiness):
    """A gamma distribution of shape k has the coefficient of variation 1 / sqrt(k); k = 1 is a Poisson process."""
    due = due_times(20_000, 40.0, burstiness, 1)
    gaps = [b - a for a, b in zip(due, due[1:], strict=False)]
    assert statistics.mean(gaps) == pytest.approx(1 / 40, rel=0.05)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)
    assert due_times(3, float("inf"), 1.0, 1) == [0.0] * 3


def test_random_prompts_are_as_long_as_asked_and_the_same_for_the_same_seed(server, bench):
    for seed in (1, 1, 2):
        bench(f"--seed={seed}", "--random-range-ratio=0.4", "--random-prefix-len=3", "--random-output-len=2")
    prompts = [body["prompt"] for _, _, _, body in server.requests]
    assert sorted(prompts[:4]) == sorted(prompts[4:8]) != sorted(prompts[8:])
    assert all(6 <= len(prompt) <= 10 for prompt in prompts)
    assert len({tuple(prompt[:3]) for prompt in prompts[:4]}) == 1 and len(set(map(tuple, prompts[:4]))) == 4
    assert max(map(max, prompts)) < 10_000


def test_a_chat_of_n_words(server, bench):
    bench("--endpoint=/v1/chat/completions", "--random-output-len=1")
    _, path, _, body = server.requests[0]
    assert path == "/v1/chat/completions" and len(body["messages"][0]["content"].split()) == 5


def test_fields_headers_and_keys_are_sent(server, bench, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    bench("--model=mine", "--ignore-eos", "--temperature=0", '--extra-body={"top_k": 3}', "--header=x-team=a=b")
    _, _, headers, body = server.requests[0]
    assert (headers["authorization"], headers["x-team"]) == ("Bearer secret", "a=b")
    assert {name: body[name] for name in ("model", "ignore_eos", "temperature", "top_k", "stream", "max_tokens")} == {
        "model": "mine",
        "ignore_eos": True,
        "temperature": 0.0,
        "top_k": 3,
        "stream": True,
        "max_tokens": 128,
    }


def test_prompts_of_files(server, bench, tmp_path):
    lines = tmp_path / "p.jsonl"
    lines.write_text('{"prompt": "one", "output_tokens": 2}\n\n{"prompt": "two"}\n')
    bench("--dataset-name=custom", f"--dataset-path={lines}", "--num-prompts=5")
    assert {(body["prompt"], body["max_tokens"]) for *_, body in server.requests} == {("one", 2), ("two", 256)}
    server.requests.clear()
    turns = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "a" * 40}]
    talks = tmp_path / "s.json"
    talks.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    bench("--dataset-name=sharegpt", f"--dataset-path={talks}")
    bench("--dataset-name=sharegpt", f"--dataset-path={talks}", "--output-len=3")
    assert {(body["prompt"], body["max_tokens"]) for *_, body in server.requests} == {("hello", 10), ("hello", 3)}


def test_pieces_are_counted_where_the_server_tells_no_usage(server, bench):
    server.usage = False
    assert bench("--random-output-len=3")[0]["total_output_tokens"] == 12


def test_warmups_are_not_counted(server, bench):
    result, _ = bench("--num-warmups=3", "--random-output-len=1")
    assert result["completed"] == 4 and len(server.requests) == 7
    assert len({tuple(body["prompt"]) for *_, body in server.requests}) == 7


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("refuses", "HTTP 400: .*no such model"),
        ("breaks", "4 of 4 requests failed"),
        ("fails", "the engine is gone"),
    ],
)
def test_a_server_that_fails_is_said_to(server, bench, behaviour, message):
    server.behaviour = behaviour
    result, err = bench("--random-output-len=3", status=1)
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (0, 4, 0)
    assert re.search(message, err)


def test_a_server_that_is_not_there(capsys):
    assert main(["bench", "serve", "--port=9", "--num-prompts=1"]) == 2
    assert "127.0.0.1:9/v1/models gives no model" in capsys.readouterr().err
    assert main(["bench", "serve", "--port=9", "--num-prompts=1", "--model=m"]) == 1
    assert "1 of 1 requests failed. The first: Client" in capsys.readouterr().err


def test_results_are_saved(server, bench, tmp_path):
    options = (f"--result-dir={tmp_path}/new", "--metadata=version=0.3", "--random-output-len=2", "--request-rate=500")
    printed, _ = bench("--save-result", *options)
    (file,) = (tmp_path / "new").iterdir()
    assert file.name == f"openai-500.0qps-fake-{printed['date']}.json" and json.loads(file.read_text()) == printed
    assert printed["version"] == "0.3" and printed["request_rate"] == 500
    bench("--save-detailed", "--result-filename=d.json", *options)
    saved = json.loads((tmp_path / "new/d.json").read_text())
    assert saved["output_lens"] == [2] * 4 and saved["generated_texts"] == ["xx"] * 4 and saved["errors"] == [""] * 4
    assert [len(gaps) for gaps in saved["itls"]] == [1] * 4


def test_the_table_has_the_chosen_metrics_only(server, capsys):
    words = ["bench", "serve", f"--port={server.port}", "--num-prompts=1", "--random-output-len=2"]
    assert main([*words, "--percentile-metrics=ttft,e2el", "--metric-percentiles=25,99.9"]) == 0
    table = capsys.readouterr().out
    assert "Time to First Token" in table and "p99.9_e2el_ms" in table and "p25_ttft_ms" in table
    assert "itl" not in table and "tpot" not in table


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--request-rate=0"], "--request-rate: '0' is refused: it must be over 0"),
        (["--request-rate=x"], "'x' is refused: it is no number"),
        (["--random-range-ratio=1"], "'1' is refused: it must be at least 0 and below 1"),
        (["--metric-percentiles=50,101"], "percentiles go from 0 to 100"),
        (["--percentile-metrics=ttfb"], "'ttfb' is refused: there are ttft, tpot, itl, e2el"),
        (["--extra-body=[1]"], "must be a JSON object"),
        (["--extra-body={"], "it is no JSON"),
        (["--header=nonsense"], "--header 'nonsense' is refused: it must be KEY=VALUE"),
        (["--dataset-name=custom"], "needs a file. Add --dataset-path"),
        (["--dataset-name=custom", "--dataset-path=/no/such"], "cannot be read as custom"),
        (["--reqest-rate=1"], "Option '--reqest-rate' is unknown. Did you mean '--request-rate'?"),
    ],
)
def test_bad_options_are_refused(bench, words, message):
    _, err = bench(*words, status=2)
    assert message in err


def test_a_file_without_prompts_is_refused(bench, tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "wrong.jsonl").write_text('{"text": "x"}\n')
    for name, message in (("empty", "there is no prompt in it"), ("wrong", "KeyError('prompt')")):
        _, err = bench("--dataset-name=custom", f"--dataset-path={tmp_path}/{name}.jsonl", status=2)
        assert message in err


def test_what_is_missing_is_named(bench, monkeypatch):
    for name in ("load", "report"):
        monkeypatch.delitem(sys.modules, f"modulm.cli.bench.{name}", raising=False)
        monkeypatch.delattr(f"modulm.cli.bench.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    _, err = bench(status=2)
    assert "It comes with an extra: pip install 'modulm-core[bench]'." in err
