"""Logits of transformers' own models, in float32 without a cache: what a model of ours must give."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

TOLERANCE = 1e-4
"""Greatest absolute difference of logits in float32."""
_LEAST_SPREAD = 0.3


def logits_of(theirs: Any, tokens: list[int]) -> torch.Tensor:
    """Return transformers' logits of every token, [length, vocab_size]."""
    theirs = copy.deepcopy(theirs)  # the rotary embedding of some kinds remembers the longest sequence it has seen
    with torch.inference_mode():
        found: torch.Tensor = theirs(torch.tensor([tokens]), use_cache=False).logits[0]
        return found


def worst(results: Iterable[tuple[torch.Tensor, list[int], int]], wanted: Callable[[list[int]], torch.Tensor]) -> float:
    """Return the greatest difference of logits from those of `wanted`; flat ones prove nothing and are refused."""
    differences = []
    for got, tokens, start in results:
        want = wanted(tokens)[start : start + len(got)]
        assert want.std() > _LEAST_SPREAD, "these logits are too flat to prove anything"
        differences.append((got - want).abs().max().item())
    return max(differences)
