"""Admission: requests that could never run are refused here, with the numbers, before they take up anything.

The second line behind `frontend/`, which knows the same limits in the user's words; a client that speaks to the engine
directly gets a reply all the same. Knows counts only.
"""

from dataclasses import dataclass

from modulm.engine.kv.groups import KVGroups
from modulm.types import Request


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What bounds one request.

    Attributes:
        max_model_len: Longest sequence, prompt and output together; None is no limit.
        max_num_batched_tokens: Tokens computed in one step.
        chunked_prefill: Whether a prompt may be computed in several steps.
    """

    max_model_len: int | None
    max_num_batched_tokens: int
    chunked_prefill: bool


def refusal(request: Request, limits: Limits, kv: KVGroups) -> str | None:
    """Return why the request can never run, or None."""
    num_prompt, num_output = len(request.prompt_token_ids), request.max_tokens
    if num_prompt == 0:
        return "The prompt is empty: there is nothing to continue. Send at least one token."
    if num_output < 1:
        return f"max_tokens={num_output!r} is refused: it must be at least 1."
    return (
        _too_long(num_prompt, num_output, limits)
        or _too_long_for_a_step(num_prompt, limits)
        or _too_large(num_prompt, num_output, limits, kv)
    )


def _too_long(num_prompt: int, num_output: int, limits: Limits) -> str | None:
    most = limits.max_model_len
    if most is None or num_prompt + num_output <= most:
        return None
    if num_prompt >= most:
        return (
            f"The prompt has {num_prompt:,} tokens and the model's limit is {most:,}, output included. "
            f"Shorten it by {num_prompt - most + 1:,} tokens or start with a larger max_model_len."
        )
    return (
        f"The prompt has {num_prompt:,} tokens and max_tokens is {num_output:,}: together more than the model's limit "
        f"of {most:,}. Lower max_tokens to {most - num_prompt:,} or shorten the prompt."
    )


def _too_long_for_a_step(num_prompt: int, limits: Limits) -> str | None:
    most = limits.max_num_batched_tokens
    if limits.chunked_prefill or num_prompt <= most:
        return None
    return (
        f"The prompt has {num_prompt:,} tokens and a step computes at most {most:,}, with splitting switched off. "
        "Set enable_chunked_prefill=True or raise max_num_batched_tokens."
    )


def _too_large(num_prompt: int, num_output: int, limits: Limits, kv: KVGroups) -> str | None:
    # The last token is sampled but never computed, so it needs no slot.
    total = num_prompt + num_output - 1
    needed = kv.peak(total, min(total, limits.max_num_batched_tokens))
    if needed <= kv.pool.num_usable:
        return None
    longest = kv.longest_sequence(limits.max_num_batched_tokens, total)
    return (
        f"The prompt has {num_prompt:,} tokens and up to {num_output:,} may be generated: that takes {needed:,} KV "
        f"blocks of {kv.block_size:,} tokens, and the cache has {kv.pool.num_usable:,}. Prompt and output together may "
        f"have {longest + 1:,} tokens; shorten them or give the cache more memory (kv_cache_memory_bytes)."
    )
