"""The list of checks is whole, and the import contracts notice what they forbid."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lint
from workspace import ROOT

MODULES = ("cli", "llm", "async_llm", "engine_process", "launch", "server", "frontend", "engine", "worker", "models")
MODULES += ("nn", "reference", "resolve")
MODULES += ("checkpoints", "plugins", "transport", "interfaces", "types", "config", "errors", "log", "outputs")
MODULES += ("sampling_params", "speculation", "structured_outputs", "interrupts", "moved", "programs", "digests")
PLUGINS = (
    "modulm_compat_vllm",
    "modulm_kernels_cpu",
    "modulm_kernels_triton",
    "modulm_metrics_prometheus",
    "modulm_parsers_reasoning",
    "modulm_parsers_tools",
    "modulm_quant_awq",
    "modulm_quant_bitsandbytes",
    "modulm_quant_compressed_tensors",
    "modulm_quant_fp8",
    "modulm_quant_gguf",
    "modulm_quant_gptq",
    "modulm_quant_int8",
    "modulm_quant_modelopt",
    "modulm_quant_mxfp4",
    "modulm_spec_decode",
    "modulm_structured_guidance",
    "modulm_structured_lmfe",
    "modulm_structured_outlines",
    "modulm_structured_xgrammar",
    "modulm_testkit",
)

FORBIDDEN = {
    "rooms": ("modulm/frontend.py", "import modulm.engine"),
    "server": ("modulm/server.py", "import modulm.worker"),
    "cycles": ("modulm/errors.py", "import modulm.config"),
    "leaves": ("modulm/types.py", "def f():\n    import numpy"),
    "interfaces": ("modulm/interfaces.py", "import modulm.log"),
    "no-torch": ("modulm/transport.py", "def f():\n    import torch"),
    "no-torch-doors": ("modulm/llm.py", "import torch"),
    "core-names-no-plugin": ("modulm/resolve.py", "import modulm_quant_gguf"),
    "plugins-public": ("modulm_quant_gguf/__init__.py", "import modulm.engine"),
    "compat-vllm": ("modulm_compat_vllm/__init__.py", "import modulm.worker"),
}
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


@pytest.fixture
def rooms(tmp_path):
    """Every room as an empty module, one plugin, and this workspace's contracts."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for package in ("modulm", *PLUGINS):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for module in MODULES:
        (tmp_path / "modulm" / f"{module}.py").write_text("import msgspec\n")
    (tmp_path / "modulm/config.py").write_text("import modulm.errors\n")
    (tmp_path / "modulm/worker.py").write_text("import torch, modulm.models, modulm.nn, modulm.reference\n")
    (tmp_path / "modulm_quant_gguf/__init__.py").write_text("import modulm.nn, modulm.interfaces\n")
    return tmp_path


def broken(folder: Path) -> set[str]:
    """Run the import linter and return the ids of the contracts that it says are broken."""
    command = [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    verdicts = re.findall(r"^(.+?) (KEPT|BROKEN)", done.stdout, re.MULTILINE)
    assert len(verdicts) == len(CONTRACTS), done.stdout
    ids = {contract["name"]: contract["id"] for contract in CONTRACTS}
    return {ids[name] for name, verdict in verdicts if verdict == "BROKEN"}


def test_contracts_accept_what_the_design_allows(rooms):
    assert broken(rooms) == set()


def test_each_contract_can_be_broken(rooms):
    assert set(FORBIDDEN) == {contract["id"] for contract in CONTRACTS}
    for file, line in FORBIDDEN.values():
        with (rooms / file).open("a") as module:
            module.write(line + "\n")
    assert broken(rooms) == set(FORBIDDEN)


def test_an_import_for_types_only_is_allowed(rooms):
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n    import modulm.config\n"
    (rooms / "modulm/interfaces.py").write_text(text)
    assert broken(rooms) == set()


def test_every_check_is_there():
    assert set(lint.checks()) == {
        *("style", "format", "layout", "sizes", "known", "contracts", "lock", "changes", "imports", "types"),
    }


def test_an_unknown_check_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lint.py", "stile"])
    with pytest.raises(SystemExit):
        lint.main()
    assert "check 'stile' is unknown. There are: style" in capsys.readouterr().err


def test_a_failing_check_fails_the_run(monkeypatch, capsys):
    checks = {"good": [sys.executable, "-c", ""], "bad": [sys.executable, "-c", "print('why'); raise SystemExit(1)"]}
    monkeypatch.setattr(lint, "checks", lambda: checks)
    monkeypatch.setattr(sys, "argv", ["lint.py"])
    assert lint.main() == 1
    said = capsys.readouterr().out
    assert "why" in said
    assert "1 of 2 checks failed: bad" in said


def test_ci_runs_what_everybody_runs():
    assert "make --no-print-directory test" in (ROOT / ".ci/run").read_text()
    assert re.search(r"^test: lint ", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("tool", sorted(ROOT.glob("tools/*.py")), ids=lambda tool: tool.name)
def test_every_tool_explains_itself(tool):
    text = tool.read_text()
    if "__main__" in text:
        done = subprocess.run([sys.executable, tool, "--help"], capture_output=True, text=True)
        assert done.returncode == 0
        assert "usage:" in done.stdout
