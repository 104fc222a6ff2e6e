"""The native kernels under address and undefined-behaviour sanitizers: a build of its own, and a part of their tests.

All of them: `make sanitize`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "packages/kernels-cpu"
TESTS = (
    "test_kernels_program_operations.py",
    "test_kernels_program_arguments.py",
    "test_kernels_elementwise.py",
)


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="the script preloads the sanitizer as Linux does")
def test_sanitizers_find_nothing():
    command = [PACKAGE / "tests/sanitize.sh", *(PACKAGE / "tests/cpu" / name for name in TESTS)]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert "ERROR: AddressSanitizer" not in done.stdout and "runtime error" not in done.stdout
    assert "sanitized tests: status 0" in done.stdout
