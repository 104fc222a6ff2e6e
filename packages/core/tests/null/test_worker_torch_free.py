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
    "kv_memory",
    "attention_layers",
    "model",
    "recorded",
    "row",
    "randomness",
    "token_counts",
    "sampler",
    "sampling_state",
    "logits",
    "masks",
    "penalties",
]


@pytest.mark.parametrize("module", MODULES)
def test_importing_it_leaves_torch_out(module):
    script = f"import modulm.worker.{module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


SAMPLING = """
import sys

import numpy as np

from modulm.reference.sampling_numpy import NumpySampling
from modulm.sampling_params import SamplingParams
from modulm.types import NewSequence, Plan, Request
from modulm.worker.batch import Batch
from modulm.worker.sampler import Sampler

batch = Batch(max_num_seqs=4, max_model_len=64, block_size=16, windows=[None], seed=0)
sampler = Sampler(None, batch, NumpySampling())
asked = [
    dict(temperature=0.0, logprobs=2, repetition_penalty=1.5),
    dict(top_p=0.9, min_p=0.01, min_tokens=3, logit_bias={2: 3.0}),
    dict(top_k=5, allowed_token_ids=[3, 4]),
    dict(temperature=2.0),
]
for number, options in enumerate(asked):
    request = Request(
        request_id=str(number), prompt_token_ids=[1], params=SamplingParams(**options), max_tokens=9,
        eos_token_ids=[0], bad_words_token_ids=[[7]],
    )
    sampler.update_state(batch.update(Plan(new=[NewSequence(request=request, token_ids=[1])])))
for step in range(5):
    logits = np.random.default_rng(step).normal(size=(4, 100)).astype(np.float32)
    ids = sampler.sample(logits, [0, 1, 2, 3]).token_ids
    assert min(ids) >= 0
    batch.append(range(4), ids)
sys.exit("torch" in sys.modules)
"""


def test_sampling_on_the_host_leaves_torch_out():
    assert subprocess.run([sys.executable, "-c", SAMPLING], check=False).returncode == 0
