"""The backend: modulm's forms as xgrammar's grammars, and its matchers as `Grammar`.

xgrammar leaves out what it does not enforce; `schemas.py` and `expressions.py` say what that is. It is imported when it
is asked, since it brings torch and transformers. Source: xgrammar's documentation and behaviour, 0.2.9.
"""

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

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
from modulm_structured_xgrammar.expressions import read_expression
from modulm_structured_xgrammar.schemas import SYNTAX_ONLY, refusal, rewritten

if TYPE_CHECKING:
    import xgrammar

_NUM_THREADS = 1
"""Of one compilation: the engine's pool has threads of its own."""
_MOST_SPACES = 24
"""Enough for a line and its indentation. Without a limit small models may write nothing else."""


class XGrammarBackend(StructuredOutputBackend):
    """See `StructuredOutputBackend`."""

    name = "xgrammar"
    rank = 20

    @classmethod
    def supports(cls, params: StructuredOutputsParams) -> Support:
        """Look at the schema, then have xgrammar read the form, which needs no vocabulary."""
        try:
            _grammar(params)
        except ValueError as error:
            return Rejected(str(error))
        return Accepted(reported(json.loads(params.text), SYNTAX_ONLY) if params.kind == "json" else "")

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        special = {*vocabulary.special_ids, *vocabulary.eos_token_ids}
        tokens = [b"" if token_id in special else token for token_id, token in enumerate(vocabulary.tokens)]
        self._info = xgrammar.TokenizerInfo(
            tokens,
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.eos_token_ids),
        )
        # Compiled forms are kept by the engine; a second cache would have no bound.
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=_NUM_THREADS, cache_enabled=False)
        self._vocabulary = vocabulary

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """See `StructuredOutputBackend`."""
        try:
            return _Compiled(self._compiler.compile_grammar(_grammar(params)), self._vocabulary)
        except (ValueError, RuntimeError) as error:
            raise RequestError(
                f"structured_outputs.{params.kind} is refused: {_reason(error)}", parameter="structured_outputs"
            ) from error


class _Compiled(CompiledGrammar):
    def __init__(self, compiled: "xgrammar.CompiledGrammar", vocabulary: Vocabulary) -> None:
        self._compiled = compiled
        self._vocabulary = vocabulary

    def start(self) -> Grammar:
        import xgrammar

        return XGrammarGrammar(xgrammar.GrammarMatcher(self._compiled), self._vocabulary)


class XGrammarGrammar(Grammar):
    """A matcher of xgrammar."""

    def __init__(self, matcher: "xgrammar.GrammarMatcher", vocabulary: Vocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._last_word = np.uint32(0xFFFFFFFF >> (-vocabulary.size % 32))
        self._num_accepted = 0

    def fill(self, mask: np.ndarray) -> None:
        """See `Grammar`."""
        if self._matcher.is_terminated():  # it cannot be asked any more
            mask.fill(0)
        else:
            self._matcher.fill_next_token_bitmask(mask.view(np.int32))
            mask[-1] &= self._last_word  # it allows all bits behind the vocabulary where it allows all tokens

    def accept(self, token_ids: Sequence[int]) -> bool:
        """See `Grammar`."""
        for token_id in token_ids:
            if not self._matcher.accept_token(token_id):
                return False
            self._num_accepted += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        """See `Grammar`."""
        if num_tokens > self._num_accepted:
            raise ValueError(f"{num_tokens} tokens cannot be taken back: there are {self._num_accepted}")
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._num_accepted -= num_tokens

    def forced(self) -> list[int]:
        """See `Grammar`. The last token is left to the model: what comes after may be in it."""
        if self._matcher.is_terminated() or not (text := self._matcher.find_jump_forward_string()):
            return []
        ids = self._vocabulary.encode(text)
        written = b"".join(self._vocabulary.tokens[token_id] for token_id in ids)
        return ids[:-1] if written == text.encode() else []

    @property
    def is_terminated(self) -> bool:
        """See `Grammar`."""
        if self._matcher.is_terminated():
            return True
        if not self._matcher.is_completed():
            return False
        mask = np.zeros(self._vocabulary.num_words, np.uint32)
        self.fill(mask)
        for token_id in self._vocabulary.eos_token_ids:
            mask[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        return not mask.any()


def _grammar(params: StructuredOutputsParams) -> "xgrammar.Grammar":
    """Return the form as xgrammar reads it. Raises `ValueError` with the reason."""
    make = _maker(params)
    try:
        return make()
    except RuntimeError as error:
        raise ValueError(_reason(error)) from error


def _maker(params: StructuredOutputsParams) -> Any:
    kind, text = params.kind, params.text
    if params.whitespace_pattern is not None:
        raise ValueError("'whitespace_pattern' is not enforced")
    schema = {"type": "object"} if kind == "json_object" else json.loads(text) if kind == "json" else None
    tag = json.loads(text) if kind == "structural_tag" else None
    for each in (schema, *_schemas_in(tag)) if kind != "json" else (schema,):
        if each is not None and (reason := refusal(each)):
            raise ValueError(reason)
    if kind == "regex":
        text = read_expression(text)
    from xgrammar import Grammar

    if kind in ("json", "json_object"):
        style: dict[str, Any] = {"any_whitespace": True, "max_whitespace_cnt": _MOST_SPACES}
        if params.disable_any_whitespace:
            style = {"any_whitespace": False, "separators": (",", ":")}
        # Strict: an object that names its members has no others. Else `"\u0061"` would be a second way to name "a".
        return partial(Grammar.from_json_schema, json.dumps(rewritten(schema)), strict_mode=True, **style)
    if kind == "choice":
        return partial(Grammar.from_ebnf, f"root ::= {' | '.join(map(_literal, params.choice or ()))}")
    if kind == "regex":
        return partial(Grammar.from_regex, text)
    if kind == "structural_tag":
        return partial(Grammar.from_structural_tag, json.dumps(tag))
    return partial(Grammar.from_ebnf if "::=" in text else Grammar.from_lark, text)


def _schemas_in(tag: Any) -> list[Any]:
    """Return the schemas of a structural tag's parts."""
    if isinstance(tag, list):
        return [schema for each in tag for schema in _schemas_in(each)]
    if not isinstance(tag, dict):
        return []
    inner = [schema for key, each in tag.items() if key != "json_schema" for schema in _schemas_in(each)]
    return [*inner, tag["json_schema"]] if "json_schema" in tag else inner


def _literal(text: str) -> str:
    return '"' + "".join(f"\\U{ord(character):08x}" for character in text) + '"'


def _reason(error: Exception) -> str:
    """Return what the library says, without its clock and its source's lines."""
    said = str(error).strip()
    return said.partition(": ")[2] if said.startswith("[") and ".cc:" in said.partition(": ")[0] else said
