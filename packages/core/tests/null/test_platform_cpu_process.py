"""What the processor as a platform does to its process before torch is there."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("given", "want"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(given, want):
    code = "import os, sys; from modulm.plugins.platforms import current_platform; current_platform('cpu');"
    code += "print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [want, "False"]
