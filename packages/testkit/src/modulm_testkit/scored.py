"""Prompts scored by the whole engine: log-probabilities of every token, and which kernels served the weights.

What a quantized checkpoint is worth once scheme, loader, kernels and step program have had it. Needs torch and a
tokenizer in the checkpoint's folder; what the numbers should be is for the caller to know.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What an engine said.

    Attributes:
        logprobs: Of each prompt: float64 [len(prompt) - 1, vocab_size], natural logarithms, of the token that follows.
        kernels: How many weights each kernel took, as `modulm config --explain` has it.
        explained: All of that.
    """

    logprobs: list[np.ndarray]
    kernels: dict[str, int]
    explained: dict[str, Any]


def scored(folder: Path | str, prompts: Sequence[Sequence[int]], **options: Any) -> Scored:
    """Run prompts through an engine that is made for this and shut down after. `options`: those of `LLM`."""
    from modulm import LLM, SamplingParams

    llm = LLM(str(folder), num_kv_blocks=64, max_logprobs=-1, **options)
    try:
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=-1)
        outputs = llm.generate([list(prompt) for prompt in prompts], params)
        explained = llm.explain()
    finally:
        llm.shutdown()
    rows = [[_row(entry) for entry in output.prompt_logprobs or [] if entry] for output in outputs]
    kernels = dict(explained["worker"]["weights by kernel"])
    return Scored(logprobs=[np.array(row) for row in rows], kernels=kernels, explained=explained)


def _row(entry: Any) -> list[float]:
    return [entry[token].logprob for token in range(len(entry))]
