"""The examples as installed packages, tiny checkpoints for them, and processes that use both."""

import json
import os
import re
import string
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WORDS = list(string.ascii_lowercase)


@pytest.fixture(scope="session")
def examples():
    """Where the examples are."""
    return EXAMPLES


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A folder with the metadata of every example, as pip would write them; with the code, a value for PYTHONPATH."""
    folder, path = tmp_path_factory.mktemp("site"), []
    for file in sorted(EXAMPLES.glob("*/pyproject.toml")):
        project = tomllib.loads(file.read_text())["project"]
        info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        lines = []
        for group, entries in project["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
        info.joinpath("entry_points.txt").write_text("\n".join(lines))
        path.append(str(file.parent))
    return os.pathsep.join([str(folder), *path])


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """Llama with random weights and a tokenizer of words, as a folder on disk."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: index for index, word in enumerate(["<s>", "</s>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return write_llama(tmp_path_factory.mktemp("tiny-llama"), tokenizer)


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory):
    """The same with a token for each byte, so that it can write anything, and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    return write_llama(tmp_path_factory.mktemp("tiny-chat"), tokenizer, chat_template=template)


def write_llama(folder, tokenizer, **settings):
    """2 layers, 4 heads, 2 KV heads, 256 positions."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", **settings}
    folder.joinpath("tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=1,
        initializer_range=0.3, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder


@pytest.fixture
def environment(installed, tmp_path):
    """The environment of a process in which the examples are installed, and which keeps no recordings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "MODULM_"))}
    path = os.pathsep.join(filter(None, [installed, kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "MODULM_CACHE_DIR": str(tmp_path), "VLLM_LOGGING_LEVEL": "DEBUG"}


@pytest.fixture
def script(environment):
    """A function that runs code in a new process and returns (the JSON that it printed last, its log)."""

    def run(code, **variables):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment | variables, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


class Server:
    """`modulm serve` in a process of its own."""

    def __init__(self, words, environment, log):
        self.log = log
        with log.open("w") as stderr:
            command = [sys.executable, "-m", "modulm.cli", "serve", *words, "--host=127.0.0.1", "--port=0"]
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)

    def wait(self):
        """Return once it serves."""
        deadline = time.monotonic() + 100
        while not self._is_ready():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def _is_ready(self):
        found = re.search(r"Serving .* on (127\.0\.0\.1:\d+)", self.log.read_text())
        if found is None:
            return False
        self.url = f"http://{found[1]}"
        try:
            return urllib.request.urlopen(f"{self.url}/ready", timeout=5).status == 200
        except OSError:
            return False

    def complete(self, **body):
        """Post to /v1/completions and return the answer."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def stop(self):
        self.process.terminate()
        self.process.wait(40)


@pytest.fixture
def serve(environment, tmp_path):
    """A function that starts a server and returns it once it is ready."""
    started = []

    def start(*words, **variables):
        server = Server([str(word) for word in words], environment | variables, tmp_path / "log")
        started.append(server)
        server.wait()
        return server

    yield start
    for server in started:
        server.stop()
