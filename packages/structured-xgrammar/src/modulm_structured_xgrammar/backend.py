"""The backend: modulm's forms as xgrammar's grammars, and its matchers as `Grammar`.

xgrammar leaves out what it does not enforce; `schemas.py` and `expressions.py` say what that is. It is imported when a
form is compiled, since it brings torch and transformers. Source: xgrammar's documentation and behaviour, 0.2.9.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
from modulm_structured_xgrammar.schemas import SYNTAX_ONLY, patterns_in, refusal, rewritten

if TYPE_CHECKING:
    import xgrammar

_NUM_THREADS = 1
"""Of one compilation: the engine's pool has threads of its own."""
_MOST_SPACES = 24
"""Enough for a line and its indentation. Without a limit small models may write nothing else."""


class XGrammarBackend(StructuredOutputBackend):
    """See `StructuredOutputBackend`."""

    name = "xgrammar"
    rank = 20  # a form takes 10 to 250 ms, a mask 0.05 to 0.1 ms; the import takes seconds, once

    @classmethod
    def supports(cls, params: StructuredOutputsParams) -> Support:
        """Look at schemas and expressions, without the library; `compile` refuses what only that can tell."""
        try:
            _asked(params)
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
            return _Compiled(self._compiler.compile_grammar(_grammar(_asked(params))), self._vocabulary)
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


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What the library is asked for.

    Attributes:
        method: Of its `Grammar`.
        patterns: Expressions inside; it must read each, since it may leave out one that it does not.
    """

    method: str
    text: str
    options: dict[str, Any] = field(default_factory=dict)
    patterns: tuple[str, ...] = ()


def _asked(params: StructuredOutputsParams) -> _Asked:
    """Return the form as the library takes it. Raises `ValueError` with what it would not enforce."""
    kind, text = params.kind, params.text
    if params.whitespace_pattern is not None:
        raise ValueError("'whitespace_pattern' is not enforced")
    if kind in ("json", "json_object"):
        schema = _checked({"type": "object"} if kind == "json_object" else json.loads(text))
        style: dict[str, Any] = {"any_whitespace": True, "max_whitespace_cnt": _MOST_SPACES}
        if params.disable_any_whitespace:
            style = {"any_whitespace": False, "separators": (",", ":")}
        # Strict: an object that names its members has no others. Else `"\u0061"` would be a second way to name "a".
        options = {"strict_mode": True, **style}
        text, patterns = json.dumps(rewritten(schema)), tuple(patterns_in(schema))
        return _Asked(method="from_json_schema", text=text, options=options, patterns=patterns)
    if kind == "structural_tag":
        tag = json.loads(text)
        found = [_checked(part["json_schema"]) for part in _parts(tag) if "json_schema" in part]
        for part in _parts(tag):
            if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
                part["pattern"] = read_expression(part["pattern"])
        patterns = tuple(pattern for schema in found for pattern in patterns_in(schema))
        return _Asked(method="from_structural_tag", text=json.dumps(tag), patterns=patterns)
    if kind == "regex":
        return _Asked(method="from_regex", text=read_expression(text))
    if kind == "choice":
        return _Asked(method="from_ebnf", text=f"root ::= {' | '.join(map(_literal, params.choice or ()))}")
    return _Asked(method="from_ebnf" if "::=" in text else "from_lark", text=text)


def _checked(schema: Any) -> Any:
    if reason := refusal(schema):
        raise ValueError(reason)
    return schema


def _parts(tag: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects that a structural tag is made of, but for what is inside its schemas."""
    inner = tag if isinstance(tag, list) else []
    if isinstance(tag, dict):
        yield tag
        inner = [each for key, each in tag.items() if key != "json_schema"]
    for each in inner:
        yield from _parts(each)


def _grammar(asked: _Asked) -> "xgrammar.Grammar":
    from xgrammar import Grammar

    for pattern in asked.patterns:
        Grammar.from_regex(pattern)
    made: Grammar = getattr(Grammar, asked.method)(asked.text, **asked.options)
    return made


def _literal(text: str) -> str:
    return '"' + "".join(f"\\U{ord(character):08x}" for character in text) + '"'


def _reason(error: Exception) -> str:
    """Return what the library says, without its clock and its source's lines."""
    said = str(error).strip()
    return said.partition(": ")[2] if said.startswith("[") and ".cc:" in said.partition(": ")[0] else said
