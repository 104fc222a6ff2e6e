"""`benchmarks/peers/servers`: the better peer, what servers are told, processes that start and end."""

import sys
import time
from pathlib import Path

import pytest

from workspace import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from peers import score  # noqa: E402
from peers.children import descendants  # noqa: E402
from peers.environments import Environment  # noqa: E402
from peers.score import Record  # noqa: E402
from peers.servers import commands, lines  # noqa: E402
from peers.servers.idle import connected, is_open  # noqa: E402
from peers.servers.running import Server, StartError, free_port  # noqa: E402

SERVER = """
import http.server, json, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(json.dumps({"data": [{"id": "m"}]}).encode())
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        streams = asked.get("stream")
        self.answer(b"data: [DONE]\\n\\n" if streams else json.dumps({"choices": [asked["model"]]}).encode())
        self.close_connection = asked["model"] == "closes"
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def server(tmp_path):
    port = free_port()
    started = Server([sys.executable, "-c", SERVER, str(port)], {}, port, tmp_path / "server.log")
    started.wait(60)
    yield started
    started.end()


def state(pid):
    """Return the letter that the system gives a process's state; None once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def become(pids, expected):
    """Wait until all are in a state that is expected; signals take a moment."""
    for _ in range(100):
        if all(state(pid) in expected for pid in pids):
            return True
        time.sleep(0.1)
    return False


def test_a_server_is_stopped_and_goes_on_with_all_its_processes_and_ends_with_them(server):
    family = descendants(server._process.pid)
    assert len(family) == 2 and server.start_s > 0
    server.pause()
    assert become(family, "T")
    server.resume()
    assert server._answers()
    server.pause()
    server.end()
    assert become(family, (None, "Z"))


def test_a_server_that_ends_is_told_with_its_last_words(tmp_path):
    started = Server([sys.executable, "-c", "raise ValueError('no such model')"], {}, free_port(), tmp_path / "log")
    with pytest.raises(StartError, match="no such model"):
        started.wait(60)


def test_idle_connections_count_while_the_server_leaves_them_open(server):
    kept, closed = (connected("127.0.0.1", server.port, model) for model in ("keeps", "closes"))
    assert is_open(kept)
    closed.sock.settimeout(60)
    assert closed.sock.recv(1) == b""
    assert not is_open(closed)


def test_the_better_peer_is_the_quicker_one_where_a_delay_is_measured():
    line = next(line for line in lines.must_reach() if line.figure == "p99_itl_ms")
    delays = {lines.OURS: 30, lines.LLAMA: 100, lines.LLAMA_BEST: 60, lines.VLLM[0]: 80}
    row = score.score(line, [Record(1, source, "p99_itl_ms", value) for source, value in delays.items()], {})
    assert (row.best, row.score, row.verdict) == (lines.LLAMA_BEST, 0.5, "reached")


def test_every_line_of_the_issue_is_there():
    assert [(line.bar, line.at_most) for line in lines.must_reach()] == [
        *((3.5, False), (1.9, False), (2.3, False)),
        *((0.7, True), (0.7, True)),
        *((0.9, False), (0.9, False)),
    ]


def test_servers_get_the_same_room_and_no_prefix_cache():
    env = Environment("nowhere")
    ours = " ".join(commands.modulm(Path("python"), Path("m.gguf"), 1, ["--dtype=float32"]))
    theirs = " ".join(commands.vllm(env, Path("m"), 1, "bfloat16"))
    for command in (ours, theirs):
        assert "--no-enable-prefix-caching --max-num-seqs 16 --max-model-len 512" in command
    assert ours.endswith("--dtype=float32")


def test_the_load_is_the_issues():
    command = " ".join(commands.load(Path("python"), lines.LLAMA, 1, 64, 7))
    for part in (
        *("--num-prompts 64", "--max-concurrency 16", "--random-input-len 128", "--random-output-len 128"),
        *("--ignore-eos", "--temperature 0", '{"cache_prompt": false}'),
    ):
        assert part in command
