"""Time a step's sampling on the host beside torch's, in turns, on the same logits.

Logits are normal with deviation 3 and a few tall ones, as a trained model's are: a handful of tokens has most of the
weight. Times are medians of wall time in microseconds per step, of `Sampler.sample` as a whole; "arg-max" is numpy's
alone.

    python benchmarks/sampling.py [--vocab-size 49152] [--rows 1,32] [--rounds 15]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from modulm.interfaces.sampling import SamplingKernels
from modulm.reference.sampling_numpy import NumpySampling
from modulm.reference.sampling_torch import TorchSampling
from modulm.sampling_params import SamplingParams
from modulm.types import NewSequence, Plan, Request
from modulm.worker.batch import Batch
from modulm.worker.sampler import Sampler
from modulm_kernels_cpu import describe
from modulm_kernels_cpu.sampling import NativeSampling

CASES = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "top-k 50": {"temperature": 0.8, "top_k": 50},
    "top-k 50, top-p 0.95, min-p 0.05": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.05},
    "top-p 0.95, temperature 5": {"temperature": 5.0, "top_p": 0.95},
    "greedy, repetition penalty": {"temperature": 0.0, "repetition_penalty": 1.1},
    "greedy, 5 log-probabilities": {"temperature": 0.0, "logprobs": 5},
}


def logits_of(rows: int, vocab_size: int) -> np.ndarray:
    """Return float32 [rows, vocab_size]."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (rows, vocab_size)).astype(np.float32)
    logits[:, ::5000] += rng.normal(12, 2, logits[:, ::5000].shape).astype(np.float32)
    return logits


def sampler_for(kernels: SamplingKernels, rows: int, options: dict) -> Sampler:
    """Return a sampler whose batch has `rows` sequences of 100 tokens that ask for `options`."""
    batch = Batch(max_num_seqs=rows, max_model_len=256, block_size=16, windows=[None], seed=0)
    sampler = Sampler(None, batch, kernels)
    for number in range(rows):
        prompt = list(range(number, number + 100))
        request = Request(
            request_id=str(number), prompt_token_ids=prompt, params=SamplingParams(**options), max_tokens=100
        )
        sampler.update_state(batch.update(Plan(new=[NewSequence(request=request, token_ids=prompt)])))
    return sampler


def microseconds(call: Callable[[], object], repeats: int) -> float:
    """Return the mean wall time of a call."""
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats * 1e6


def main() -> None:
    """Print one line per case and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--rows", default="1,32")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    makers = {"native": NativeSampling, "numpy": NumpySampling, "torch": lambda: TorchSampling(torch.device("cpu"))}
    print(
        f"{describe()}; torch {torch.__version__} with {torch.get_num_threads()} threads; {options.vocab_size} tokens"
    )
    print(f"{'rows':>4}  {'case':34} {'native':>9} {'numpy':>9} {'torch':>9}   torch / native")
    for rows in map(int, options.rows.split(",")):
        array = logits_of(rows, options.vocab_size)
        print(f"{rows:4}  {'arg-max':34} {microseconds(lambda a=array: a.argmax(-1), 20):9.0f}")
        for case, asked in CASES.items():
            print(f"{rows:4}  {case:34} {compared(makers, array, asked, options.rounds)}", flush=True)


def compared(makers: dict[str, Callable[[], SamplingKernels]], array: np.ndarray, asked: dict, rounds: int) -> str:
    """Return the columns of one case."""
    samplers = {name: sampler_for(make(), len(array), asked) for name, make in makers.items()}
    rows = list(range(len(array)))
    times: dict[str, list[float]] = {name: [] for name in makers}
    for round_number in range(rounds + 1):
        for name, sampler in samplers.items():
            logits = torch.from_numpy(array) if name == "torch" else array
            took = microseconds(partial(sampler.sample, logits, rows), 5 if name == "native" else 1)
            if round_number:  # the first one warms up
                times[name].append(took)
    middle = {name: statistics.median(each) for name, each in times.items()}
    columns = " ".join(f"{middle[name]:9.0f}" for name in makers)
    return f"{columns}   {middle['torch'] / middle['native']:.1f}"


if __name__ == "__main__":
    main()
