"""Each wheel, alone in a fresh environment with only what it declares, imports and passes its own tests."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("folder", sorted(file.parent.name for file in ROOT.glob("packages/*/pyproject.toml")))
def test_wheel_works_alone(folder):
    command = [sys.executable, "tools/check_isolated.py", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "alone: installs, imports, passes" in done.stdout
