"""A tiny Llama with random weights and a byte-level tokenizer, as a folder on disk; servers of it as processes."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from modulm_testkit.checkpoints import SIZES, tiny_llama, tiny_model, write_tokenizer


@pytest.fixture(autouse=True)
def core_alone(monkeypatch, tmp_path):
    """Core's own tests see no installed plugin, whatever is there, and keep no recordings."""
    from modulm.plugins import discovery

    monkeypatch.setenv("VLLM_PLUGINS", "")
    monkeypatch.setenv("MODULM_CACHE_DIR", str(tmp_path / "cache"))
    discovery.reset()
    yield
    discovery.reset()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A folder with config.json, safetensors and tokenizer: Llama, 2 layers, 4 heads, 2 KV heads, 256 positions."""
    return tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny_windowed_folder(tmp_path_factory):
    """Gemma 3, 4 layers: three that see 11 tokens back, one that sees all; other positions for each kind."""
    folder = tmp_path_factory.mktemp("tiny-gemma3")
    config = {
        **SIZES, "vocab_size": write_tokenizer(folder), "num_hidden_layers": 4, "head_dim": 8,
        "query_pre_attn_scalar": 8, "sliding_window": 12, "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "bos_token_id": 0, "eos_token_id": [1, 5], "initializer_range": 0.3,
    }  # fmt: skip
    tiny_model(folder, "Gemma3ForCausalLM", config, seed=8)
    return folder


@pytest.fixture
def tiny_llm(tiny_folder):
    """A factory of engines on the tiny Llama, or on `model`; each is shut down after the test."""
    from modulm import LLM

    made = []

    def make(**options):
        options = {"model": str(tiny_folder), "num_kv_blocks": 200, "max_num_seqs": 16, **options}
        made.append(LLM(**options))
        return made[-1]

    yield make
    for llm in made:
        llm.shutdown()


class ServerProcess:
    """A server process; `port` is known once it listens."""

    def __init__(self, model, *args, env=None):
        self.model = str(model)
        words = [sys.executable, "-m", "modulm.cli", "serve", self.model, "--host=127.0.0.1", "--port=0"]
        words += ["--num-kv-blocks=400", "--max-num-seqs=16", *args]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MODULM_LOG_LEVEL": "INFO", "VLLM_PLUGINS": "", **(env or {})}
        self.process = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.lines = []
        self.port = None
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"Serving .* on 127.0.0.1:(\d+)", line)
            self.port = int(found[1]) if found else self.port

    def wait_until_ready(self, seconds=60):
        deadline = time.monotonic() + seconds
        while self.status("/ready") != 200:
            assert self.process.poll() is None, "".join(self.lines)
            assert time.monotonic() < deadline, "".join(self.lines)
            time.sleep(0.05)
        return self

    def status(self, path):
        if self.port is None:
            return None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def load(self):
        """How many requests are under way."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/load") as answer:
            return json.load(answer)["server_load"]

    def client(self, kind=None, **options):
        """An official client, synchronous unless `kind` is another."""
        import openai

        options = {"api_key": "none", "max_retries": 0, **options}
        return (kind or openai.OpenAI)(base_url=f"http://127.0.0.1:{self.port}/v1", **options)

    def engine(self):
        """The engine's process."""
        import psutil

        children = psutil.Process(self.process.pid).children(recursive=True)
        return max(children, key=lambda child: child.memory_info().rss)

    def end(self, *signals):
        for each in signals:
            self.process.send_signal(each)
        try:
            return self.process.wait(30)
        finally:
            if self.process.poll() is None:
                self.process.kill()


@pytest.fixture
def start_server(tiny_folder):
    """A factory of server processes on the tiny Llama; each is ended after the test."""
    started = []

    def make(*args, **options):
        started.append(ServerProcess(tiny_folder, *args, **options))
        return started[-1].wait_until_ready()

    yield make
    for each in started:
        each.end(signal.SIGTERM, signal.SIGTERM)


@pytest.fixture(scope="session")
def server(tiny_folder):
    """One server process on the tiny Llama for all tests that leave it as it is."""
    made = ServerProcess(tiny_folder, "--served-model-name", "tiny", "also", "--max-logprobs=5").wait_until_ready()
    yield made
    assert made.end(signal.SIGTERM) == 0, "".join(made.lines)
