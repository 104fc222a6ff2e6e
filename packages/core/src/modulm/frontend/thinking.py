"""What the engine must know of a response's thinking: whether it comes, the marks around it, how much it may be.

A form waits for the thinking's end, and a budget writes it. Whether there is thinking is not read off templates here:
the reasoning parser, which will read the response, is asked what it would take the next words for.
"""

from collections.abc import Sequence

from modulm.errors import RequestError
from modulm.frontend.tokenizer import Tokenizer
from modulm.interfaces.parsers import Reasoning, ReasoningParser, ResponseContext
from modulm.sampling_params import SamplingParams
from modulm.types import Thinking, ThinkingMark

_WORDS = "Hm"
"""A text that is no format's mark."""
_TAIL = 64
"""Tokens that tell what a prompt ends in."""


def thinking_of(
    parser: type[ReasoningParser] | None, context: ResponseContext, params: SamplingParams, tokenizer: Tokenizer
) -> Thinking | None:
    """Return the thinking that comes, or may come, before an answer that a form or a budget is asked for; else None.

    Raises `RequestError` for a budget where nothing tells what it is of.
    """
    budget = params.thinking_token_budget
    if budget is None and params.structured_outputs is None:
        return None
    start, ends = (None, ()) if parser is None else _marks(parser, context)
    if parser is None or start is None or not ends:
        if budget is None:
            return None
        why = (
            f"reasoning parser {parser.__name__} names no marks around it" if parser else "no --reasoning-parser is on"
        )
        raise RequestError(
            f"thinking_token_budget={budget} is refused: where thinking ends is not known, as {why}. Leave it out.",
            parameter="thinking_token_budget",
        )
    begun = _is_thinking(parser, context, "")
    if not begun and not _is_thinking(parser, context, start):
        return None
    marks = [_mark(text, tokenizer) for text in (start, *ends)]
    used = {token for mark in marks for token in mark.token_ids}
    shown = {token: tokenizer.added_tokens[token].encode() for token in used if token in tokenizer.special_ids}
    return Thinking(start=marks[0], ends=marks[1:], shown=shown, begun=begun, budget=budget)


def _marks(parser: type[ReasoningParser], context: ResponseContext) -> tuple[str | None, tuple[str, ...]]:
    try:
        return parser(context).marks()
    except (Exception, SystemExit):
        return parser.start_marker, parser.end_markers()  # as below


def _is_thinking(parser: type[ReasoningParser], context: ResponseContext, before: str) -> bool:
    """Whether words after `before`, where the response begins with it, would be thinking."""
    try:
        reader = parser(context)
        events = [*reader.push(before + _WORDS), *reader.finish("length")]
    except (Exception, SystemExit):
        return False  # it will fail at the response too, which is logged and passed on unread
    return any(isinstance(event, Reasoning) and _WORDS in event.text for event in events)


def _mark(text: str, tokenizer: Tokenizer) -> ThinkingMark:
    return ThinkingMark(text=text.encode(), token_ids=tokenizer.encode(text, add_special_tokens=False))


def tail(token_ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Return the end of a prompt that came as ids, which tells whether thinking has begun."""
    known = [token for token in token_ids[-_TAIL:] if 0 <= token < tokenizer.vocab_size]
    return tokenizer.decode(known, skip_special_tokens=False)
