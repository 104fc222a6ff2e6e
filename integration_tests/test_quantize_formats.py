"""What `modulm quantize` writes, and Triton's kernels in the whole engine: logits of transformers in float64.

The model has the numbers that the format's reader finds, which the formats' own tests hold against definitions. Triton
runs in its interpreter, in a process of its own where neither kernels-cpu nor anything else is switched on.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.cli import main
from modulm.plugins.registry import registry
from modulm_testkit.checkpoints import randomise, tiny_llama
from modulm_testkit.oracles.weights import dequantised
from modulm_testkit.scored import EXACT, PROMPTS, scored, scored_by_transformers

WRITTEN = {
    "gptq": ["--method=rtn", "--group-size=32"],
    "awq": ["--method=rtn", "--group-size=-1"],
    "int8": [],
    "fp8": ["--method=rtn"],
}
THROUGH_TRITON = """
import json, sys
from modulm_testkit.scored import EXACT, PROMPTS, scored
ran = scored(sys.argv[1], PROMPTS, **EXACT)
print(json.dumps([[row.tolist() for row in ran.logprobs], ran.kernels]))
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tiny_llama(tmp_path_factory.mktemp("plain"), hidden_size=64, intermediate_size=96)
    randomise(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=WRITTEN)
def written(request, plain, tmp_path_factory):
    out = tmp_path_factory.mktemp("written") / request.param
    assert main(["quantize", str(plain), str(out), f"--format={request.param}", *WRITTEN[request.param]]) == 0
    return out


@pytest.fixture(scope="module")
def wanted(plain, written):
    checkpoint = SafetensorsCheckpoint.open(written)
    method = checkpoint.config()["quantization_config"]["quant_method"]
    scheme = registry("modulm.quantization").get(method).from_checkpoint(checkpoint)
    model, count = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float64), 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                weight = scheme.weight(checkpoint, name.removesuffix(".weight"), *parameter.shape)
                if weight is not None:
                    close, count = torch.from_numpy(dequantised(weight)), count + 1
                    assert (close - parameter).norm() < 0.2 * parameter.norm()
                    parameter.copy_(close)
    assert count == 14
    return scored_by_transformers(model, PROMPTS)


def test_logits(written, wanted):
    ran = scored(written, PROMPTS, **EXACT)
    for got, right in zip(ran.logprobs, wanted, strict=True):
        np.testing.assert_allclose(got, right, atol=2e-4)
    assert ran.num_served("GroupedInt", "ChannelInt8", "Float8") == 8  # q, k and v are one, as are gate and up


def test_logits_through_triton(written, wanted):
    if written.name == "int8":
        pytest.skip("ChannelInt8 has no Triton kernel")
    names = {"gptq": "gptq", "awq": "awq", "fp8": "compressed-tensors"}
    environment = os.environ | {"TRITON_INTERPRET": "1", "VLLM_PLUGINS": f"triton,{names[written.name]}"}
    command = [sys.executable, "-c", THROUGH_TRITON, str(written)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    logprobs, kernels = json.loads(done.stdout.splitlines()[-1])
    for got, right in zip(logprobs, wanted, strict=True):
        np.testing.assert_allclose(np.array(got), right, atol=2e-4)
    kind = "Float8" if written.name == "fp8" else "GroupedInt"
    assert sum(count for line, count in kernels.items() if line.startswith(f"triton: linear {kind}")) == 8, kernels
