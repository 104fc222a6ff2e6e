"""The commands as processes on a tiny model: what they refuse, odd bytes and locales, a terminal and a pipe.

`integration_tests/test_cli.py` runs them on real weights.
"""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading

import pytest

from modulm import LLM, SamplingParams
from modulm.cli import main

ENGINE = ("--num-kv-blocks=100", "--max-num-seqs=4")


@pytest.fixture
def command(tiny_folder):
    """Return the words of a command on the tiny model."""
    return lambda name, *args: [*name.split(), f"--model={tiny_folder}", *ENGINE, *args]


@pytest.fixture
def here(command, capsys, monkeypatch):
    """Run a command in this process: status, stdout, stderr."""

    def run(name, *args, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            status = main(command(name, *args))
        except SystemExit as left:
            status = left.code
        return status, *capsys.readouterr()

    return run


def process(words, **options):
    """Return how to start a command in a process of its own."""
    env = {**os.environ, "MODULM_LOG_LEVEL": "CRITICAL", "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    return {"args": [sys.executable, "-m", "modulm.cli", *words], "env": env, **options}


def run(words, stdin=b"", **env):
    return subprocess.run(**process(words, env=env), input=stdin, capture_output=True, timeout=120, check=False)


@pytest.fixture
def texts(tiny_folder):
    """What the engine itself makes of prompts, greedily."""
    llm = LLM(model=tiny_folder, num_kv_blocks=100, max_num_seqs=4, seed=4)
    yield lambda prompts, **options: [
        [completion.text for completion in output.outputs]
        for output in llm.generate(prompts, SamplingParams(**{"temperature": 0.0, "max_tokens": 5, **options}))
    ]
    llm.shutdown()


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("generate", ["--prompt=x", "--max-tokens=0"], "max_tokens=0"),
        ("generate", ["--prompt=x", "--stop="], "stop=['']"),
        ("generate", [], "The prompt is empty"),
        (
            "generate",
            ["--prompt=hello there", "--no-enable-chunked-prefill", "--max-num-batched-tokens=2"],
            "at most 2",
        ),
        ("generate", ["--prompt=x", "--min-tokens=300"], "leaves 255"),
        ("chat", ["--n=2"], "--n 2 is refused"),
        ("bench latency", ["--input-len=0"], "--input-len: '0' is refused"),
        ("bench latency", ["--num-iters=0"], "--num-iters: '0' is refused"),
        ("bench throughput", ["--num-prompts=-1"], "--num-prompts: '-1' is refused"),
        ("bench latency", ["--input-len=200", "--output-len=200"], "the model's limit of 256"),
        ("bench latency", ["--no-enable-chunked-prefill", "--max-num-batched-tokens=2"], "at most 2"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_a_status(here, name, args, message):
    """A failed request ended with status 0 and no text; a rate was computed of outputs that had been cut short."""
    status, output, error = here(name, *args)
    assert (status, output) == (2, "")
    assert error.startswith("modulm: error: ") and message in error and error.count("\n") == 1


def test_parameters_are_judged_before_the_model_is_loaded(capsys):
    assert main(["generate", "--model=/no/such", "--prompt=x", "--top-p=2"]) == 2
    assert "top_p=2.0 is refused" in capsys.readouterr().err


def test_threads_are_an_option(here):
    status, output, _ = here("config", "--json", "--cpu-threads=3")
    assert status == 0 and json.loads(output)["config"]["cpu_threads"] == 3
    status, _, error = here("config", "--cpu-threads=0")
    assert status == 2 and "cpu_threads=0 is refused" in error


def test_several_completions_come_one_after_the_other(here, texts):
    """Their pieces were mixed on one line."""
    params = ["--n=3", "--temperature=1", "--seed=4", "--max-tokens=5", "--quiet"]
    _, output, _ = here("generate", "--prompt=hello", "--prompt=the fox", *params)
    expected = texts(["hello", "the fox"], n=3, temperature=1.0)
    assert output == "".join(text + "\n" for completions in expected for text in completions)


def test_text_is_utf8_in_any_locale(command, texts):
    """The prompt's bytes were half surrogate pairs, and the answer could not be written."""
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    args = ["--quiet", "--temperature=0", "--max-tokens=40", "--ignore-eos"]
    ((expected,),) = texts(["über 我"], max_tokens=40, ignore_eos=True)
    for done in (
        run(command("generate", "--prompt=über 我", *args), **env),
        run(command("generate", *args), stdin="über 我".encode(), **env),
    ):
        assert done.returncode == 0, done.stderr
        assert done.stdout.decode() == expected + "\n" and not expected.isascii()


@pytest.mark.parametrize("name", ["generate", "chat"])
def test_input_that_is_no_text(here, name):
    status, _, error = here(name, stdin=b"h\xe9llo\n")
    assert status == 2 and "Standard input is refused: it is not UTF-8 text" in error


@pytest.mark.parametrize("option", ["--prompt", "--system", "--stop"])
def test_an_argument_that_is_no_text(here, option):
    status, _, error = here("generate", option + "=" + os.fsdecode(b"h\xe9llo"))
    assert status == 2 and f"argument {option}: " in error and "is not UTF-8" in error


def test_chat_with_empty_lines_and_commands(here):
    status, output, _ = here("chat", "--max-tokens=3", "--temperature=0", stdin=b"\n \nhi\n/reset\nhi\n/exit\nno\n")
    assert status == 0
    first, second = output[:-1].split("\n")
    assert first == second != ""
    assert here("chat")[:2] == (0, "")


PIPES = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def test_a_reader_that_leaves(command):
    words = command("generate", "--prompt=a", "--prompt=b", "--max-tokens=200", "--ignore-eos")
    child = subprocess.Popen(**process(words, **PIPES))
    child.stdout.read(1)
    child.stdout.close()
    assert child.wait(60) == 1 and child.stderr.read() == b""
    child.stderr.close()


def test_ctrl_c(command):
    words = command("generate", "--max-tokens=250", "--ignore-eos", *["--prompt=a"] * 400)
    child = subprocess.Popen(**process(words, **PIPES))
    child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=60)
    assert child.returncode == 130 and error.strip() == b""


def on_a_terminal(words):
    """Run with stderr on a terminal; return what it got there, and stdout."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(**process(words, **{**PIPES, "stderr": theirs}))
    os.close(theirs)
    shown = []

    def read():
        try:
            while piece := os.read(ours, 4096):
                shown.append(piece)
        except OSError:  # Linux: the other side has closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    output, _ = child.communicate(timeout=120)
    reader.join(10)
    os.close(ours)
    assert child.returncode == 0
    return b"".join(shown).decode(), output.decode()


def test_progress_is_shown_on_a_terminal_and_not_in_a_pipe(command):
    words = command("generate", "--prompt=hello", "--max-tokens=3", "--temperature=0", "--quiet")
    shown, output = on_a_terminal(words)
    assert "\rLoading weights [" in shown and "] 21/21" in shown
    assert shown.endswith("\r\x1b[K"), "the bar must be gone when the answer comes"
    done = run(words)
    assert (done.stdout.decode(), done.stderr) == (output, b"")
