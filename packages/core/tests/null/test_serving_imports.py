"""What serving is made of imports no torch, and no ZeroMQ before an engine process is asked for."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("modulm.async_llm", {"torch", "transformers", "zmq"}),
        ("modulm.frontend.streams", {"torch", "transformers", "zmq", "modulm.engine.loop", "modulm.worker.worker"}),
        ("modulm.transport.restarts", {"torch", "transformers", "zmq", "tokenizers"}),
        ("modulm.transport.socket", {"torch", "transformers", "tokenizers", "modulm.engine.loop"}),
        ("modulm.engine_process", {"torch", "transformers"}),
    ],
)
def test_importing_it_leaves_out(module, unwanted):
    script = f"import sys, {module}; print(sorted({unwanted!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "[]\n"
