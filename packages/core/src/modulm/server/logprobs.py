"""Log-probabilities as OpenAI's two APIs write them. JSON has no infinity, so minus infinity is written as -9999."""

from collections.abc import Sequence
from typing import Any

from modulm.outputs import Logprob, PromptLogprobs, SampleLogprobs
from modulm.server.schema.chat import ChatLogprobs, TokenLogprob, TopLogprob
from modulm.server.schema.completions import CompletionLogprobs

LOWEST = -9999.0
"""Stands for minus infinity (vLLM's value)."""


def finite(logprob: float) -> float:
    """Return a value that JSON can carry."""
    return max(logprob, LOWEST)


def _text(token_id: int, entry: Logprob, as_ids: bool) -> str:
    return f"token_id:{token_id}" if as_ids else entry.decoded_token or ""


def completion_logprobs(
    positions: Sequence[dict[int, Logprob] | None], *, first: str, offset: int, as_ids: bool
) -> tuple[CompletionLogprobs, int]:
    """Return the four lists of /v1/completions, and the offset at which the next token's text begins.

    Args:
        positions: Each with the chosen token first; None for a prompt's first token, which nothing precedes.
        first: What to write for that one.
        offset: Characters before the first position.
    """
    lists = CompletionLogprobs()
    for position in positions:
        entries = [(_text(*entry, as_ids), finite(entry[1].logprob)) for entry in (position or {}).items()]
        token, logprob = entries[0] if entries else (first, None)
        lists.tokens.append(token)
        lists.token_logprobs.append(logprob)
        lists.top_logprobs.append(_first_of_each(entries) if entries else None)
        lists.text_offset.append(offset)
        offset += len(token)
    return lists, offset


def _first_of_each(entries: list[tuple[str, float]]) -> dict[str, float]:
    """Several tokens may have one text; the chosen one stands first."""
    found: dict[str, float] = {}
    for token, logprob in entries:
        found.setdefault(token, logprob)
    return found


def chat_logprobs(positions: SampleLogprobs, num_top: int, *, as_ids: bool) -> ChatLogprobs:
    """Return the content list of chat completions: each chosen token, and the `num_top` likeliest (-1: all)."""

    def one(kind: Any, token_id: int, entry: Logprob) -> Any:
        token = _text(token_id, entry, as_ids)
        return kind(token=token, logprob=finite(entry.logprob), bytes=list(token.encode()))

    content: list[TokenLogprob] = []
    for position in positions:
        entries = list(position.items())
        ranked = sorted(entries, key=lambda item: item[1].rank or 0)
        chosen: TokenLogprob = one(TokenLogprob, *entries[0])
        chosen.top_logprobs = [one(TopLogprob, *item) for item in (ranked if num_top == -1 else ranked[:num_top])]
        content.append(chosen)
    return ChatLogprobs(content=content)


def prompt_logprobs(positions: PromptLogprobs | None) -> list[Any] | None:
    """Return vLLM's list: per prompt token null, or an object from token id to value, rank and text."""
    if positions is None:
        return None
    return [
        position
        and {
            str(token_id): {"logprob": finite(e.logprob), "rank": e.rank, "decoded_token": e.decoded_token}
            for token_id, e in position.items()
        }
        for position in positions
    ]
