"""The backend: modulm's forms as lm-format-enforcer's parsers, and its token enforcer as `Grammar`.

It reads characters: tokens that are parts of characters are never allowed. Which JSON Schemas it enforces is in
`schemas.py`, how its parsers are made in `parsers.py`. It is imported when a form is compiled, since it imports torch
where that is installed. Source: its behaviour, 0.11.3.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from modulm.errors import RequestError
from modulm.interfaces.structured import (
    CompiledGrammar,
    Grammar,
    StructuredOutputBackend,
    StructuredOutputsParams,
    Vocabulary,
)
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_structured_lmfe.expressions import read_expression
from modulm_structured_lmfe.schemas import fixed_texts, read

if TYPE_CHECKING:
    from lmformatenforcer import CharacterLevelParser, TokenEnforcer, TokenEnforcerTokenizerData


class FormatEnforcerBackend(StructuredOutputBackend):
    """See `StructuredOutputBackend`."""

    name = "lm-format-enforcer"
    rank = 70  # a token takes 2 to 150 ms, in Python

    @classmethod
    def supports(cls, params: StructuredOutputsParams) -> Support:
        """Look at schema and expression, without the library; `compile` refuses what only that can tell."""
        try:
            _check(params)
        except ValueError as error:
            return Rejected(str(error))
        return Accepted()

    def __init__(self, vocabulary: Vocabulary) -> None:
        special = {*vocabulary.special_ids, *vocabulary.eos_token_ids}
        words = []
        for token_id, token in enumerate(vocabulary.tokens):
            text = token.decode(errors="replace")
            if text and token_id not in special and text.encode() == token:
                words.append((token_id, text, True))
        self._vocabulary = vocabulary
        self._characters = {text for _, text, _ in words if len(text) == 1}
        self._words = self._made(words)
        # In strings it would let control characters through; line ends are white space, and it keeps those apart.
        self._json_words = self._made([word for word in words if all(c >= " " or c in "\r\n" for c in word[1])])

    def _check_characters(self, params: StructuredOutputsParams) -> None:
        """A character that only several tokens make together cannot be written: it is read a character at a time."""
        texts = fixed_texts(read(params.text)) if params.kind == "json" else params.choice or ()
        for text in texts:
            if missing := set(text) - self._characters:
                raise ValueError(f"the model has no token for the character {min(missing)!r} of {text!r:.40}")

    def _made(self, words: list[tuple[int, str, bool]]) -> "TokenEnforcerTokenizerData":
        from lmformatenforcer import TokenEnforcerTokenizerData

        eos = list(self._vocabulary.eos_token_ids)
        return TokenEnforcerTokenizerData(
            words, lambda ids: "", eos, use_bitmask=False, vocab_size=self._vocabulary.size
        )

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """See `StructuredOutputBackend`."""
        try:
            _check(params)
            _parser(params)
            self._check_characters(params)
        except ValueError as error:
            raise RequestError(
                f"structured_outputs.{params.kind} is refused: {error}", parameter="structured_outputs"
            ) from error
        words = self._json_words if params.kind in ("json", "json_object") else self._words
        return _Compiled(params, words, self._vocabulary)


class _Compiled(CompiledGrammar):
    def __init__(
        self, params: StructuredOutputsParams, words: "TokenEnforcerTokenizerData", vocabulary: Vocabulary
    ) -> None:
        self._params = params
        self._words = words
        self._vocabulary = vocabulary

    def start(self) -> Grammar:
        from lmformatenforcer import TokenEnforcer

        # A parser knows which of its copies is at work, so each sequence has its own.
        parser = _parser(self._params, self._words.tokenizer_alphabet)
        config = parser.config
        enforcer = TokenEnforcer(self._words, parser)  # it sets another
        parser.config = config
        return FormatEnforcerGrammar(enforcer, self._vocabulary)


class FormatEnforcerGrammar(Grammar):
    """The states that a sequence went through; None after the end."""

    def __init__(self, enforcer: "TokenEnforcer", vocabulary: Vocabulary) -> None:
        self._enforcer = enforcer
        self._vocabulary = vocabulary
        enforcer.get_allowed_tokens([])
        self._states: list[Any] = [enforcer.prefix_states.pop(())]

    def _allowed(self) -> Sequence[int]:
        """Return the ids that may come. Raises `RuntimeError` where the library gave up."""
        state = self._states[-1]
        if state is None:
            return ()
        ids: Sequence[int] = state.allowed_tokens.allowed_tokens
        eos = self._vocabulary.eos_token_ids
        if set(ids) <= set(eos) and not state.parser.can_end():
            raise RuntimeError("lm-format-enforcer knows no way to go on")
        return ids

    def fill(self, mask: np.ndarray) -> None:
        """See `Grammar`."""
        bits = np.zeros(32 * len(mask), np.uint8)
        bits[list(self._allowed())] = 1
        mask[...] = np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token_ids: Sequence[int]) -> bool:
        """See `Grammar`."""
        for token_id in token_ids:
            if token_id not in self._allowed():
                return False
            if token_id in self._vocabulary.eos_token_ids:
                self._states.append(None)
                continue
            # It finds a state by all tokens before; two stand for them, or each would keep all.
            states = self._enforcer.prefix_states
            states[(-1,)] = self._states[-1]
            self._enforcer.get_allowed_tokens([-1, token_id])
            self._states.append(states.pop((-1, token_id)))
        return True

    def rollback(self, num_tokens: int) -> None:
        """See `Grammar`."""
        if num_tokens >= len(self._states):
            raise ValueError(f"{num_tokens} tokens cannot be taken back: there are {len(self._states) - 1}")
        del self._states[len(self._states) - num_tokens :]

    @property
    def is_terminated(self) -> bool:
        """See `Grammar`."""
        return set(self._allowed()) <= set(self._vocabulary.eos_token_ids)


def _check(params: StructuredOutputsParams) -> None:
    """Raise `ValueError` with what would not be enforced."""
    if params.kind in ("grammar", "structural_tag"):
        raise ValueError(f"no {params.kind.replace('_', ' ')} is read")
    if params.whitespace_pattern is not None:
        raise ValueError("'whitespace_pattern' is not enforced")
    if params.kind == "regex":
        read_expression(params.text)
    elif params.kind == "json":
        read(params.text)


def _parser(params: StructuredOutputsParams, alphabet: str | None = None) -> "CharacterLevelParser":
    """Import the library, which imports torch where that is installed, and return the form as a parser."""
    from modulm_structured_lmfe.parsers import parser_of

    return parser_of(params, alphabet)
