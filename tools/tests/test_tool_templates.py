"""Packages that `modulm plugins new` writes pass our own checks: layout, metadata, imports, style and format."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import check_packages
from modulm_testkit.templates import TEMPLATES
from modulm_testkit.templates.kinds import KINDS
from workspace import ROOT

WRITTEN = sorted(KINDS)


def test_they_follow_the_rules_of_this_workspace(workspace_root, edit):
    shutil.copy(ROOT / "LICENSE", workspace_root)
    for file in workspace_root.glob("packages/*/LICENSE"):
        shutil.copy(ROOT / "LICENSE", file)
    for kind in WRITTEN:
        TEMPLATES.write(kind, f"modulm-{kind}", workspace_root / "packages" / kind, "Apache-2.0")
    imported = "".join(f', "modulm_{kind.replace("-", "_")}"' for kind in WRITTEN)
    edit(workspace_root / "pyproject.toml", ', "modulm_quant_gguf"', f', "modulm_quant_gguf"{imported}')
    assert check_packages.problems(workspace_root) == []


@pytest.mark.parametrize("start", ["x", "modulm-some-company"])
def test_style_and_format_by_their_own_settings(start, tmp_path):
    """With a short and a long name, as a name's length decides where lines break."""
    for kind in WRITTEN:
        TEMPLATES.write(kind, f"{start}-{kind}", tmp_path / kind, "MIT")
    ruff = Path(sys.executable).parent / "ruff"
    for command in (["check"], ["format", "--check"]):
        words = [str(ruff), *command, "--no-cache", str(tmp_path)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
