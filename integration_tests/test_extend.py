"""docs/extend: what a page shows is what happens. Its blocks make a package, which is built, installed and used.

A block that begins with a comment naming a file is that file; other blocks of Python and shell run in order, in
processes of their own, in the package's folder. A `text` block is what the one before it prints, `...` being anything.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs/extend").glob("*.md"))
EXAMPLES = sorted((ROOT / "docs/extend/examples").glob("*.py"))
PIP = """#!{python}
# `pip install -e .` of these pages, without an index: the wheel is built, and unpacked where PYTHONPATH says.
import pathlib, subprocess, sys, zipfile
assert sys.argv[1:] == ["install", "-e", "."], sys.argv
subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"], check=True, stdout=2)
for wheel in pathlib.Path("dist").glob("*.whl"):
    zipfile.ZipFile(wheel).extractall({site!r})
"""


def blocks(page):
    """Return (language, text) of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.S | re.M)


def file_of(text):
    """Return the file that a block is, or None."""
    found = re.match(r"# ([\w./-]+\.\w+)\n", text)
    return found and found[1]


def pattern(text):
    """Blanks in a row are as one, and `...` is anything, lines included."""
    parts = [re.escape(" ".join(part.split())).replace(r"\ ", r"\s+") for part in text.split("...")]
    return r"[\s\S]*?".join(parts)


class Reader:
    """Somebody who does what a page says, in an environment of their own."""

    def __init__(self, folder):
        self.folder = folder / "package"
        self.folder.mkdir()
        tools, site = folder / "bin", folder / "site"
        tools.mkdir()
        (tools / "pip").write_text(PIP.format(python=sys.executable, site=str(site)))
        (tools / "pip").chmod(0o755)
        path = [str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MODULM_", "VLLM_"))}
        own = {"PATH": os.pathsep.join(path), "PYTHONPATH": str(site), "MODULM_CACHE_DIR": str(folder / "cache")}
        self.environment = {**clean, **own, "MODULM_STRICT_PLUGINS": "1", "HF_HUB_OFFLINE": "1"}
        self.printed = ""

    def does(self, language, text):
        name = file_of(text)
        if language not in ("python", "sh", "text", "toml"):
            raise AssertionError(f"what is done with a block of {language}?")
        if name:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        elif language == "toml":
            tomllib.loads(text)  # part of a file that is shown whole elsewhere
        elif language == "text":
            assert re.search(pattern(text), self.printed), f"expected:\n{text}\nprinted:\n{self.printed}"
        else:
            self.run({"python": [sys.executable, "-c"], "sh": [shutil.which("sh"), "-e", "-c"]}[language], text)

    def run(self, command, text):
        process = subprocess.Popen(
            [*command, text], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            self.printed, complaints = process.communicate(timeout=200)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has left behind
        assert process.returncode == 0, f"{text}\n{self.printed}\n{complaints}"


@pytest.fixture
def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("page", [page for page in PAGES if "```" in page.read_text()], ids=lambda path: path.stem)
def test_a_reader_who_does_what_the_page_says_succeeds(page, tmp_path, free_port):
    reader = Reader(tmp_path)
    for language, text in blocks(page):
        reader.does(language, text.replace("8000", str(free_port)))


def test_the_kinds_of_packages_that_pages_name_are_there(tmp_path):
    reader = Reader(tmp_path)
    reader.does("sh", "modulm plugins new --list")
    kinds = {line.split()[0] for line in reader.printed.splitlines()}
    named = {kind for page in PAGES for kind in re.findall(r"plugins new\s+([a-z-]+)\s", page.read_text())}
    assert named <= kinds and len(named) > 3


def test_a_reader_notices_what_is_not_true(tmp_path):
    reader = Reader(tmp_path)
    reader.does("python", "print('the answer is 42')")
    reader.does("text", "the ... 42\n")
    with pytest.raises(AssertionError, match="41"):
        reader.does("text", "41\n")
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        reader.does("python", "1 / 0")
    with pytest.raises(AssertionError, match="no-such-command"):
        reader.does("sh", "no-such-command\ntrue\n")


ENTRIES = """
[vllm.general_plugins]
general = your_package.general:register
[vllm.platform_plugins]
limited = your_package.platform:probe
[vllm.endpoint_plugins]
queue = your_package.endpoint:Queue
[vllm.io_processor_plugins]
temperatures = your_package.io_processor:entry
[vllm.logits_processors]
forbid = your_package.logits:Forbid
[modulm.checkpoints]
npz = your_package.checkpoint:NumpyCheckpoint
[modulm.executors]
timed = your_package.executor:TimedExecutor
[modulm.kernels]
float64 = your_package.kernels:Float64Kernels
[modulm.lora_resolvers]
folders = your_package.lora:Folders
[modulm.speculators]
echo = your_package.speculator:Echo
[modulm.structured_output]
choices = your_package.structured:Choices
[modulm.tool_parsers]
marked = your_package.parsers:Marked
[modulm.reasoning_parsers]
tagged = your_package.parsers:Tagged
"""
USE = """
import asyncio, hashlib, json, pathlib, sys
from fastapi import FastAPI
from fastapi.testclient import TestClient
from modulm import AsyncLLM, ModelRegistry, SamplingParams, StructuredOutputsParams
from modulm.config import EngineConfig
from modulm.plugins import hooks
from modulm.plugins.registry import registry

async def tokens(llm, **extra):
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, **extra)
    async for output in llm.generate({"prompt_token_ids": [5, 6]}, params):
        pass
    return list(output.outputs[0].token_ids)

async def written(llm):
    params = SamplingParams(max_tokens=20, structured_outputs=StructuredOutputsParams(choice=[" h i d", " c a g e"]))
    async for output in llm.generate({"prompt_token_ids": [5, 6]}, params):
        pass
    return output.outputs[0].text

async def refusal(llm):
    try:
        await tokens(llm, extra_args={"forbid": "all"})
    except ValueError as error:
        return str(error)

def main():
    config = EngineConfig.make(model="model", executor="timed", kernels="float64", num_kv_blocks=40, dtype="float32")
    llm = AsyncLLM.from_config(config, in_process=True)
    chosen = {choice["family"]: choice["chosen"] for choice in llm.describe()["choices"]}
    plain = asyncio.run(tokens(llm))
    answer = {"chosen": chosen, "plain": plain, "other": asyncio.run(tokens(llm, extra_args={"forbid": plain[:1]}))}
    answer["refusal"] = asyncio.run(refusal(llm))
    answer["written"] = asyncio.run(written(llm))
    answer["mine"] = "MyLlamaForCausalLM" in ModelRegistry.get_supported_archs()
    (queue,) = hooks.load_endpoint_plugins(["generate"])
    app = FastAPI()
    queue.attach_router(app)
    asyncio.run(queue.init_state(llm, app.state, None))
    answer["queue"] = TestClient(app).get("/queue").json()
    llm.shutdown()
    processor = hooks.load_io_processor("temperatures")(config, None)
    answer["prompt"] = processor.pre_process(processor.parse_data({"temperatures": [21, 23]}))
    folder = pathlib.Path("adapters/mine")
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    resolver = registry("modulm.lora_resolvers").get("folders")()
    found = [asyncio.run(resolver.resolve_lora("base", name)) for name in ("mine", "../adapters/mine", "yours")]
    answer["adapters"] = [adapter and [adapter.name, adapter.key] for adapter in found]
    text = '<think>Where?</think>It is <call>weather {"city": "Paris"}</call> so'
    first, then = (registry(f"modulm.{kind}_parsers").get(name)
                   for kind, name in (("reasoning", "tagged"), ("tool", "marked")))
    thought = first.parse(text)
    parsed = then.parse(thought.content)
    calls = [[call.name, call.arguments] for call in parsed.calls]
    answer["parsed"] = [thought.reasoning, parsed.content, calls]
    print(json.dumps(answer))

main()
"""


def test_the_examples_of_the_contracts_serve_an_engine(tmp_path, tiny_llama):
    """All in one distribution, declared as a reader would."""
    reader = Reader(tmp_path)
    np.savez(reader.folder / "model.npz", **tiny_llama(reader.folder / "model"))
    (reader.folder / "model.npz").rename(reader.folder / "model/model.npz")
    site = tmp_path / "site"
    shutil.copytree(ROOT / "docs/extend/examples", site / "your_package")
    info = site / "your_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: your-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    assert set(re.findall(r"your_package\.(\w+)", ENTRIES)) == {path.stem for path in EXAMPLES}
    reader.environment["VLLM_PLUGINS"] = "your-package"
    reader.does("python", USE)
    *said, last = reader.printed.splitlines()
    assert re.fullmatch(r"\d+ steps took 0\.\d+ s", "\n".join(said))
    answer = json.loads(last)
    chosen = {"platform": "limited", "modulm.checkpoints": "npz", "modulm.attention": "torch"}
    assert answer["chosen"].items() >= chosen.items()
    assert answer["plain"][0] != answer["other"][0] and len(answer["other"]) == 6
    assert answer["plain"] == greedy(reader.folder / "model", [5, 6], 6)
    assert "forbid='all' is refused" in answer["refusal"] and answer["mine"]
    assert answer["written"] in (" h i d", " c a g e")  # how a tokenizer without a decoder writes
    assert answer["queue"] == {"running": 0, "waiting": 0}
    assert answer["prompt"] == "Temperatures today: 21, 23. The weather was"
    assert answer["parsed"] == ["Where?", "It is  so", [["weather", '{"city": "Paris"}']]]
    assert answer["adapters"] == [["mine", hashlib.sha256(b"weights").hexdigest()], None, None]


def greedy(folder, ids, count):
    """What the model says by transformers, from the same tensors."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig.from_pretrained(folder))
    tensors = {name: torch.from_numpy(array) for name, array in np.load(folder / "model.npz").items()}
    model.load_state_dict({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]})
    ids = list(ids)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(model(torch.tensor([ids])).logits[0, -1].argmax().item())
    return ids[-count:]
