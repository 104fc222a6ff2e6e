"""Log-probabilities in outputs' form: dictionaries from token id to value, rank and text, the chosen token first.

Values stay floats, minus infinity included; what JSON cannot carry is the server's to mend.
"""

from collections.abc import Callable, Sequence

from modulm.outputs import Logprob, PromptLogprobs
from modulm.types import TokenLogprobs

TextOf = Callable[[int], str]
"""Token id -> its text (`Tokenizer.token_text`)."""


def position_logprobs(position: TokenLogprobs, text_of: TextOf | None) -> dict[int, Logprob]:
    """Return one position's entries: the chosen token, then the likeliest by rank. Without `text_of` no texts."""

    def entry(token_id: int, logprob: float, rank: int) -> Logprob:
        return Logprob(logprob=logprob, rank=rank, decoded_token=text_of(token_id) if text_of else None)

    entries = {position.token_id: entry(position.token_id, position.logprob, position.rank)}
    for rank, (token_id, logprob) in enumerate(zip(position.top_ids, position.top_logprobs, strict=True), start=1):
        if token_id not in entries:
            entries[token_id] = entry(token_id, logprob, rank)
    return entries


def prompt_logprobs(positions: Sequence[TokenLogprobs], text_of: TextOf | None) -> PromptLogprobs:
    """Return one entry per prompt token; the first has nothing before it, so it is None."""
    return [None, *(position_logprobs(position, text_of) for position in positions)]
