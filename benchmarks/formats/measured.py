"""Measures one checkpoint: `python -m formats.measured MODEL OPTIONS WINDOWS ROUNDS` prints one line of JSON.

Perplexity is of Python's manual, as in `quality.py`. Decoding is one sequence behind 128 tokens, prefill 512 tokens.
"""

import json
import sys
import time
from typing import Any

import numpy as np

from against_transformers import prompts
from quality import FIRST, WINDOW, text

PROMPT_LEN, OUTPUT_LEN = 128, 129


def perplexity(llm: Any, windows: int) -> float:
    """Return the perplexity of the second halves of windows from all over the text."""
    from modulm import SamplingParams

    ids = llm.get_tokenizer().encode(text(), add_special_tokens=False)
    step, params = len(ids) // windows, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, detokenize=False)
    logprobs = []
    for start in range(0, windows * step, step):
        window = ids[start : start + WINDOW]
        (output,) = llm.generate([{"prompt_token_ids": window}], params)
        logprobs += [output.prompt_logprobs[at][window[at]].logprob for at in range(FIRST + 1, WINDOW)]
    return float(np.exp(-np.mean(logprobs)))


def seconds(llm: Any, length: int, count: int) -> float:
    """Time one sequence."""
    from modulm import SamplingParams

    (prompt,) = prompts(1, length, seed=1)
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
    started = time.perf_counter()
    llm.generate([{"prompt_token_ids": prompt}], params)
    return time.perf_counter() - started


def main() -> None:
    """Load, measure, print."""
    from modulm import LLM

    model, options, windows, rounds = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    llm = LLM(model, enable_prefix_caching=False, max_model_len=2 * WINDOW, **options)
    worker = llm.explain()["worker"]
    found = {key: worker[key] for key in ("weights_bytes", "program")}
    found["kernels"] = list(worker["weights by kernel"])
    found["perplexity"] = perplexity(llm, windows) if windows else None
    seconds(llm, PROMPT_LEN, OUTPUT_LEN)
    found["decode"], found["prefill"] = [], []
    for _ in range(rounds):
        first = seconds(llm, PROMPT_LEN, 1)
        found["decode"].append((OUTPUT_LEN - 1) / (seconds(llm, PROMPT_LEN, OUTPUT_LEN) - first))
        found["prefill"].append(WINDOW / seconds(llm, WINDOW, 1))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
