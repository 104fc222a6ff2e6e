"""Clients that go, read slowly, come in floods or send half: sequences are freed, others are served, nothing grows."""

import gc
import json
import socket
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.005)


def read_until(raw, mark):
    data = b""
    while mark not in data:
        part = raw.recv(65536)
        assert part, data
        data += part
    return data


@pytest.fixture
def slow(server):
    """The server, whose steps take 20 ms."""
    server.worker.pace_s = 0.02
    yield server
    server.worker.pace_s = 0.0
    wait_for(server.is_idle)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_goes_frees_its_sequences(slow, stream, n):
    with slow.stream(max_tokens=150, stream=stream, n=n, temperature=1) as raw:
        if stream:
            read_until(raw, b"data: ")
        wait_for(lambda: slow.num_running == n)
    steps = slow.engine.stats().scheduler.step_counter
    wait_for(lambda: slow.num_running == 0)
    assert slow.engine.stats().scheduler.step_counter - steps <= 3
    wait_for(slow.is_idle)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_after_sending_several_at_once_frees_all(slow, stream):
    data = json.dumps({"prompt": "a", "max_tokens": 190, "stream": stream}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)
    with socket.create_connection(("127.0.0.1", slow.port)) as raw:
        raw.sendall(request * 3)
        wait_for(lambda: slow.num_running == 1)
    steps = slow.engine.stats().scheduler.step_counter
    wait_for(slow.is_idle)
    assert slow.engine.stats().scheduler.step_counter - steps <= 10


def test_a_client_that_goes_while_it_waits_is_forgotten(slow):
    with slow.stream(max_tokens=100, n=8, temperature=1) as first:
        read_until(first, b"data: ")
        with slow.stream(max_tokens=5):
            wait_for(lambda: slow.num_running == 9)
        wait_for(lambda: slow.num_running == 8)


def test_a_half_closed_connection_counts_as_closed(slow):
    with slow.stream(max_tokens=150) as raw:
        read_until(raw, b"data: ")
        raw.shutdown(socket.SHUT_WR)
        wait_for(slow.is_idle)


def test_a_body_that_never_comes_to_its_end_holds_nothing(server):
    raw = socket.create_connection(("127.0.0.1", server.port))
    raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    assert server.complete(prompt="a", max_tokens=1)
    raw.close()
    wait_for(server.is_idle)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 65_600, 431),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"x%05d: y\r\n" % i for i in range(5960)), 431),
        (b"GET /" + b"a" * 65_600, 431),
        (b"hello\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_http_is_refused_in_our_words(server, sent, status):
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        for start in range(0, len(sent), 5000):
            raw.sendall(sent[start : start + 5000])
            time.sleep(0.001)
        head, _, body = read_until(raw, b"}}").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    assert server.complete(prompt="a", max_tokens=1)


def test_a_long_body_beside_its_head_is_no_long_head(server):
    server.complete(prompt=[2] * 100, max_tokens=1, user="u" * 300_000)


def test_a_normal_end_sends_no_abort(server, monkeypatch):
    """F24: aborts are for requests that have not ended."""
    aborted = []
    abort = server.llm._frontend.abort
    monkeypatch.setattr(server.llm._frontend, "abort", lambda label: (aborted.append(label), abort(label)))
    for stream in (True, False) * 100:
        server.complete(prompt=["a", "b"], max_tokens=3, stream=stream)
    assert aborted == []
    monkeypatch.setattr(server.worker, "pace_s", 0.01)
    with server.stream(max_tokens=190) as raw:
        read_until(raw, b"data: ")
    wait_for(server.is_idle)
    assert len(aborted) == 1


def test_a_kept_connection_serves_many_requests(server):
    body = json.dumps({"prompt": "a", "max_tokens": 2, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        for _ in range(5):
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            raw.sendall(head + body)
            answer = read_until(raw, b"0\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"data: [DONE]" in answer


def test_a_slow_reader_delays_nobody_and_gets_everything(make_server):
    """Its socket is full, so its stream waits; the memory that its events take stays bounded."""
    server = make_server(max_num_seqs=128, num_kv_blocks=7000)
    body = {"prompt": "a", "max_tokens": 190, "n": 100, "temperature": 1, "logprobs": 20, "stream": True}
    data = json.dumps(body).encode()
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", server.port))
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
        raw.sendall(head.encode() + data)
        wait_for(lambda: server.llm._streams.num_open == 1)
        wait_for(lambda: server.llm._streams.num_open == 0, 30)  # the engine is done, the reader has not begun
        assert server.app.state.serving.admission.num_open == 1
        started = time.monotonic()
        assert server.complete(prompt="b", max_tokens=5)["choices"][0]["text"] == server.text(5)
        assert time.monotonic() - started < 2
        (connection,) = [c for c in server.uvicorn.server_state.connections if c.flow and c.flow.write_paused]
        assert connection.transport.get_write_buffer_size() < 2_000_000
        received = bytearray()
        while part := raw.recv(1 << 20):
            received += part
    assert received.count(b'"finish_reason":"length"') == 100
    assert b"data: [DONE]" in received
    wait_for(server.is_idle)


def test_a_flood_is_told_to_come_again(make_server):
    server = make_server(options={"max_num_queued_reqs": 4}, max_num_seqs=2)
    server.worker.pace_s = 0.01
    body = {"prompt": "a", "max_tokens": 20}

    def ask(_):
        status, headers, answer = server.ask("/v1/completions", body)
        return status, headers.get("retry-after"), answer.get("error", {}).get("code")

    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(ask, range(40)))
    served = [answer for answer in answers if answer[0] == 200]
    assert set(answers) == {(200, None, None), (429, "1", "rate_limit_exceeded")}
    assert len(served) >= 6
    assert server.rejections == ["max_num_queued_reqs"] * (40 - len(served))
    wait_for(server.is_idle)
    status, _, answer = server.ask("/v1/completions", {"prompt": ["a"] * 7})
    assert (status, answer["error"]["param"]) == (400, "n")
    assert server.complete(**body)
    assert server.ask("/health")[0] == 200


def test_one_key_may_not_take_all(make_server):
    options = {"api_key": ["a", "b"], "max_concurrent_reqs_per_key": 1}
    server = make_server(options=options)
    server.worker.pace_s = 0.02
    body = json.dumps({"prompt": "a", "max_tokens": 100, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer a\r\ncontent-length: "
        raw.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
        read_until(raw, b"data: ")
        asked = {"prompt": "a", "max_tokens": 1}
        assert server.ask("/v1/completions", asked, {"Authorization": "Bearer a"})[0] == 429
        assert server.rejections == ["max_concurrent_reqs_per_key"]
        assert server.ask("/v1/completions", asked, {"Authorization": "Bearer b"})[0] == 200
    wait_for(server.is_idle)
    assert server.ask("/v1/completions", asked, {"Authorization": "Bearer a"})[0] == 200


def test_hundreds_of_requests_with_random_ends_leave_nothing_behind(server):
    """Half of the clients go early; no task, connection or sequence stays, and memory does not grow."""
    server.worker.pace_s = 0.0005

    def one(number):
        with server.stream(max_tokens=1 + number * 7 % 60, stream=bool(number % 3)) as raw:
            if number % 2:
                raw.recv(100) if number % 4 == 1 else None
            else:
                read_until(raw, b"[DONE]" if number % 3 else b'"usage"')

    def round_of(count):
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(one, range(count)))
        wait_for(server.is_idle)
        wait_for(lambda: not server.uvicorn.server_state.connections)
        server.llm.stats()  # the engine gathers what nobody has asked for, up to a limit
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    round_of(100)
    tracemalloc.start()
    before = round_of(100)
    grown = round_of(400) - before
    tracemalloc.stop()
    server.worker.pace_s = 0.0
    assert not server.uvicorn.server_state.tasks
    assert server.engine._scheduler.kv.pool.num_free == server.engine._scheduler.kv.pool.num_usable
    assert grown < 100_000
    assert threading.active_count() < 60


def test_an_engine_that_fails_ends_streams_with_an_error_event(make_server):
    server = make_server()
    server.worker.pace_s = 0.02
    with server.stream(max_tokens=150) as raw:
        read_until(raw, b"data: ")
        server.worker.fail = "the roof leaks"
        end = read_until(raw, b"0\r\n\r\n").decode()
    assert '"error":{"message":"' in end
    assert end.count("data: [DONE]") == 1
    status, _, answer = server.ask("/v1/completions", {"prompt": "a"})
    assert (status, answer["error"]["type"]) == (500, "server_error")
    server.worker.fail = None
    assert server.complete(prompt="a", max_tokens=1)
    wait_for(server.is_idle)
