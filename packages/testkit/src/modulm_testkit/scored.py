"""Prompts scored and continued by the whole engine, and by transformers; which kernels served the weights.

What a quantized checkpoint is worth once scheme, loader, kernels and step program have had it. Needs torch and a
tokenizer in the checkpoint's folder; what weights transformers' model should have is for the caller to know.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modulm_testkit.steps import prompt

EXACT: dict[str, Any] = {
    "dtype": "float32", "kv_cache_dtype": "float32", "kernel_precision": "exact", "cpu_threads": 1,
}  # fmt: skip
"""Options of `LLM` with which float32's is all the rounding there is."""
PROMPTS = [prompt(30, 1), prompt(17, 2)]
_NUM_CONTINUED = 16


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

    def num_served(self, *kinds: str) -> int:
        """Return how many weights are of these kinds ("Float8").

        Where modulm-kernels-cpu is installed, `AssertionError` unless it serves all of them in a native program.
        """
        found = {name: count for name, count in self.kernels.items() if any(kind in name for kind in kinds)}
        if importlib.util.find_spec("modulm_kernels_cpu"):
            assert all(name.startswith("cpu: linear") for name in found), self.kernels
            assert "run by kernels 'cpu'" in self.explained["worker"]["program"]
        return sum(found.values())


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


def scored_by_transformers(model: Any, prompts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Return what `Scored.logprobs` should be by transformers' model, which becomes one of float64."""
    import torch

    with torch.inference_mode():
        rows = [model.double()(torch.tensor([list(one)])).logits[0, :-1] for one in prompts]
    return [torch.log_softmax(row, -1).numpy() for row in rows]


def continued(folder: Path | str, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
    """Return 16 greedy tokens for each prompt. `options`: those of `LLM`."""
    from modulm import LLM, SamplingParams

    llm = LLM(str(folder), num_kv_blocks=64, **options)
    try:
        params = SamplingParams(max_tokens=_NUM_CONTINUED, min_tokens=_NUM_CONTINUED, temperature=0.0)
        outputs = llm.generate([list(one) for one in prompts], params)
        return [list(output.outputs[0].token_ids) for output in outputs]
    finally:
        llm.shutdown()


def continued_by_transformers(model: Any, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
    """Return what `continued` should be. `options`: those of transformers' `generate`."""
    import torch

    length = {"max_new_tokens": _NUM_CONTINUED, "min_new_tokens": _NUM_CONTINUED}
    found = []
    for one in prompts:
        ids = torch.tensor([list(one)])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **length, **options)
        found.append(out[0, len(one) :].tolist())
    return found


def _row(entry: Any) -> list[float]:
    return [entry[token].logprob for token in range(len(entry))]
