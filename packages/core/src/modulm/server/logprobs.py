"""Log-probabilities as OpenAI's two APIs write them. JSON has no infinity, so minus infinity is written as -9999.

A token that is a part of a character has U+FFFD as its text; chat tells its bytes, which add up to the character's.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from modulm.frontend.detokenize import Detokenizer, token_bytes
from modulm.frontend.tokenizer import Tokenizer
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


class TextOffsets:
    """Where tokens begin in a text: behind the characters that were complete before them.

    Args:
        detokenizer: The one that makes the text.
        start: Characters before the first token.
    """

    def __init__(self, detokenizer: Detokenizer, start: int) -> None:
        self._detokenizer = detokenizer
        self._offset = start

    def of(self, token_ids: Iterable[int]) -> list[int]:
        """Return where each of the next tokens begins."""
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            self._offset += len(self._detokenizer.step(token_id))
        return offsets


def completion_logprobs(
    positions: Sequence[dict[int, Logprob] | None], offsets: list[int], *, first: str, as_ids: bool
) -> CompletionLogprobs:
    """Return the four lists of /v1/completions.

    Args:
        positions: Each with the chosen token first; None for a prompt's first token, which nothing precedes.
        offsets: Where their tokens begin.
        first: What to write for a prompt's first token.
    """
    lists = CompletionLogprobs(text_offset=offsets)
    for position in positions:
        entries = [(_text(*entry, as_ids), finite(entry[1].logprob)) for entry in (position or {}).items()]
        token, logprob = entries[0] if entries else (first, None)
        lists.tokens.append(token)
        lists.token_logprobs.append(logprob)
        lists.top_logprobs.append(_first_of_each(entries) if entries else None)
    return lists


def _first_of_each(entries: list[tuple[str, float]]) -> dict[str, float]:
    """Several tokens may have one text; the chosen one stands first."""
    found: dict[str, float] = {}
    for token, logprob in entries:
        found.setdefault(token, logprob)
    return found


def chat_logprobs(positions: SampleLogprobs, num_top: int, tokenizer: Tokenizer, *, as_ids: bool) -> ChatLogprobs:
    """Return the content list of chat completions: each chosen token, and the `num_top` likeliest (-1: all)."""

    def one(kind: Any, token_id: int, entry: Logprob) -> Any:
        token = _text(token_id, entry, as_ids)
        return kind(token=token, logprob=finite(entry.logprob), bytes=list(token_bytes(tokenizer, token_id)))

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
