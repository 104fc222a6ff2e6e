"""The worker's bookkeeping imports no torch, so that a process that runs recorded programs need not have it."""

import subprocess
import sys

import pytest

MODULES = [
    "worker",
    "runner",
    "batch",
    "groups",
    "executors",
    "load",
    "weights",
    "kv_budget",
    "row",
    "randomness",
    "token_counts",
]


@pytest.mark.parametrize("module", MODULES)
def test_importing_it_leaves_torch_out(module):
    script = f"import modulm.worker.{module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
