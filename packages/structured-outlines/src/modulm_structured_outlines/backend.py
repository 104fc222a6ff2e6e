"""The backend: modulm's forms as regular expressions, and outlines-core's indices of states as `Grammar`.

Which JSON Schemas become expressions that enforce all of them is in `schemas.py`. An index knows, for each state of the
expression, the tokens that may follow; states are numbers, and a sequence keeps those it went through. Source:
outlines-core's documentation and behaviour, 0.2.14.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import outlines_core

from modulm.errors import RequestError
from modulm.interfaces.json_schema import reported
from modulm.interfaces.structured import (
    CompiledGrammar,
    Grammar,
    StructuredOutputBackend,
    StructuredOutputsParams,
    Vocabulary,
)
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_structured_outlines.expressions import read_expression
from modulm_structured_outlines.schemas import SYNTAX_ONLY, expression_of, read

_MOST_CHARACTERS = 20_000
"""Longest expression; its states, times the tokens, are all worked out before the first mask."""
_MOST_KEPT = 2048
"""Masks of one form."""
_BYTES = outlines_core.Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})
_END = r"\x00"
"""Follows every expression and stands for the tokens that end an output. Without it the library would go on from where
an expression is complete only to where it is complete again: "1" and "1.5" would be "1"."""


class OutlinesBackend(StructuredOutputBackend):
    """See `StructuredOutputBackend`."""

    name = "outlines"
    rank = 60  # masks are as quick, but a form takes 0.2 to 11 s, which no output's tokens win back

    @classmethod
    def supports(cls, params: StructuredOutputsParams) -> Support:
        """Make the expression. Its states, which may take for ever, are for `compile`: that has a deadline."""
        try:
            _expression(params)
        except ValueError as error:
            return Rejected(_reason(error))
        return Accepted(reported(read(params.text), SYNTAX_ONLY) if params.kind == "json" else "")

    def __init__(self, vocabulary: Vocabulary) -> None:
        special = {*vocabulary.special_ids, *vocabulary.eos_token_ids}
        ids = defaultdict[bytes, list[int]](list)
        for token_id, token in enumerate(vocabulary.tokens):
            if token and token_id not in special and b"\0" not in token:
                ids[token].append(token_id)
        ids[b"\0"] = list(vocabulary.eos_token_ids)
        self._vocabulary = vocabulary
        self._words = outlines_core.Vocabulary(vocabulary.size, dict(ids))  # its own end is no token

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """See `StructuredOutputBackend`."""
        try:
            expression = _expression(params)
            _check(outlines_core.Index(expression, _BYTES))
            return _Compiled(outlines_core.Index(expression, self._words), self._vocabulary)
        except ValueError as error:
            raise RequestError(
                f"structured_outputs.{params.kind} is refused: {_reason(error)}", parameter="structured_outputs"
            ) from error


class _Compiled(CompiledGrammar):
    def __init__(self, index: outlines_core.Index, vocabulary: Vocabulary) -> None:
        self.index = index
        self.eos = frozenset(vocabulary.eos_token_ids)
        self._num_words = vocabulary.num_words
        self._masks: dict[int, np.ndarray] = {}

    def start(self) -> Grammar:
        return OutlinesGrammar(self)

    def mask(self, state: int) -> np.ndarray:
        """Return the mask of a state, kept from the last time."""
        found = self._masks.get(state)
        if found is None:
            bits = np.zeros(32 * self._num_words, np.uint8)
            bits[self.index.get_allowed_tokens(state) or []] = 1
            found = np.packbits(bits, bitorder="little").view(np.uint32)
            if len(self._masks) >= _MOST_KEPT:
                self._masks.clear()
            self._masks[state] = found
        return found


class OutlinesGrammar(Grammar):
    """The states that a sequence went through; None after the end."""

    def __init__(self, compiled: _Compiled) -> None:
        self._compiled = compiled
        self._states: list[int | None] = [compiled.index.get_initial_state()]

    def fill(self, mask: np.ndarray) -> None:
        """See `Grammar`."""
        state = self._states[-1]
        mask[...] = 0 if state is None else self._compiled.mask(state)

    def accept(self, token_ids: Sequence[int]) -> bool:
        """See `Grammar`."""
        for token_id in token_ids:
            state = self._states[-1]
            following = None if state is None else self._compiled.index.get_next_state(state, token_id)
            if following is None:
                return False
            self._states.append(None if token_id in self._compiled.eos else following)
        return True

    def rollback(self, num_tokens: int) -> None:
        """See `Grammar`."""
        if num_tokens >= len(self._states):
            raise ValueError(f"{num_tokens} tokens cannot be taken back: there are {len(self._states) - 1}")
        del self._states[len(self._states) - num_tokens :]

    @property
    def is_terminated(self) -> bool:
        """See `Grammar`."""
        state = self._states[-1]
        return state is None or self._compiled.eos.issuperset(self._compiled.index.get_allowed_tokens(state) or ())


def _expression(params: StructuredOutputsParams) -> str:
    """Return the form as an expression, with its end. Raises `ValueError` with the reason."""
    kind, text = params.kind, params.text
    if kind in ("grammar", "structural_tag"):
        raise ValueError(f"no {kind.replace('_', ' ')} is read")
    if kind == "choice":
        made = "|".join(map(re.escape, params.choice or ()))
    elif kind == "regex":
        made = read_expression(text)
    else:
        white_space = "" if params.disable_any_whitespace else params.whitespace_pattern
        made = expression_of({"type": "object"} if kind == "json_object" else read(text), white_space)
    if len(made) > _MOST_CHARACTERS:
        raise ValueError(f"as an expression it has {len(made):,} characters, and at most {_MOST_CHARACTERS:,} are read")
    return f"(?:{made}){_END}"


def _check(index: outlines_core.Index) -> None:
    """Raise `ValueError` where the sign for the end may stand in a text."""
    following = index.get_transitions()
    ends = index.get_final_states()
    if any(set(following.get(state, ())) - {256} for state in ends) or any(
        0 in tokens and tokens[0] not in ends for tokens in following.values()
    ):
        raise ValueError("the character NUL is not enforced")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())
