"""The backend: modulm's forms as llguidance's grammars, and its matchers as `Grammar`.

llguidance keeps errors in the matcher and raises none; they are looked at after each call that may bring one. Its masks
have our layout. Source: llguidance's documentation, docs/json_schema.md and docs/syntax.md.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

from modulm.errors import RequestError
from modulm.interfaces.json_schema import reported, subschemas
from modulm.interfaces.structured import (
    CompiledGrammar,
    Grammar,
    StructuredOutputBackend,
    StructuredOutputsParams,
    Vocabulary,
)
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_structured_guidance.structural_tags import check_rules, lark_of

_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,24}"
"""Enough for a line and its indentation. Without a limit small models may write nothing else."""
_ESCAPES = 'nrbtf\\"'
"""Letters that may follow a backslash in a string. With "u" the name of a member could be written in several ways."""
_SYNTAX_ONLY = ("date", "date-time", "time")
"""Formats of which days that a month does not have, and wrong leap seconds, are let through."""
_BOUNDS = ("exclusiveMinimum", "exclusiveMaximum", "minimum", "maximum")


class GuidanceBackend(StructuredOutputBackend):
    """See `StructuredOutputBackend`."""

    name = "guidance"
    rank = 10  # a form is ready in 1 ms, a mask takes 0.01 to 0.3 ms, and nothing heavy is imported

    @classmethod
    def supports(cls, params: StructuredOutputsParams) -> Support:
        """Ask llguidance, which refuses what it does not enforce and needs no vocabulary for that."""
        try:
            grammar = _grammar(params)
        except ValueError as error:
            return Rejected(str(error))
        is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar)
        if is_error:
            return Rejected("; ".join(messages))
        return Accepted(reported(json.loads(params.text), _SYNTAX_ONLY) if params.kind == "json" else "")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        eos = list(vocabulary.eos_token_ids)
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Words(vocabulary)), eos_token=eos)

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """See `StructuredOutputBackend`."""
        try:
            matcher = LLMatcher(self._tokenizer, _grammar(params))
        except ValueError as error:
            raise _refused(params, str(error)) from error
        if matcher.is_error():
            raise _refused(params, matcher.get_error())
        return _Compiled(matcher, self._vocabulary.eos_token_ids)


class _Words:
    """A vocabulary as llguidance reads it: special tokens begin with a byte that no text has."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encode = vocabulary.encode
        special = set(vocabulary.special_ids)
        self.tokens = [
            b"\xff<|%d|>" % token_id if token_id in special else token
            for token_id, token in enumerate(vocabulary.tokens)
        ]
        self.tokens += [b""] * (vocabulary.size - len(self.tokens))  # masks are as wide as this list
        self.special_token_ids = sorted(special)
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id = None

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


class _Compiled(CompiledGrammar):
    def __init__(self, matcher: LLMatcher, eos: Sequence[int]) -> None:
        self._matcher = matcher
        self._eos = eos

    def start(self) -> Grammar:
        return GuidanceGrammar(self._matcher.deep_copy(), self._eos)


class GuidanceGrammar(Grammar):
    """A matcher of llguidance."""

    def __init__(self, matcher: LLMatcher, eos: Sequence[int]) -> None:
        self._matcher = matcher
        self._eos = eos
        self._has_ended = False

    def fill(self, mask: np.ndarray) -> None:
        """See `Grammar`."""
        if self._has_ended:
            mask.fill(0)
        else:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)

    def accept(self, token_ids: Sequence[int]) -> bool:
        """See `Grammar`. A matcher that has stopped takes nothing more, also not the end that it allows."""
        for token_id in token_ids:
            is_end = token_id in self._eos
            if self._has_ended or (self._matcher.is_stopped() and not is_end):
                return False
            if is_end and self._matcher.is_stopped():
                self._has_ended = True
            elif not self._matcher.consume_tokens([self._eos[0] if is_end else token_id]):
                return False
        return True

    def rollback(self, num_tokens: int) -> None:
        """See `Grammar`."""
        if num_tokens and self._has_ended:
            self._has_ended, num_tokens = False, num_tokens - 1
        if num_tokens and not self._matcher.rollback(num_tokens):
            raise ValueError(f"{num_tokens} tokens cannot be taken back: {self._matcher.get_error()}")

    def forced(self) -> list[int]:
        """See `Grammar`. Where there are some, the mask allows the first of them and nothing else."""
        return self._matcher.compute_ff_tokens()

    @property
    def is_terminated(self) -> bool:
        """See `Grammar`."""
        return self._matcher.is_stopped()


def _grammar(params: StructuredOutputsParams) -> str:
    """Return llguidance's own notation. Raises `ValueError` with the reason."""
    kind, text = params.kind, params.text
    if kind == "json" or kind == "json_object":
        return LLMatcher.grammar_from_json_schema(_schema(params), overrides=_style(params))
    if kind == "structural_tag":
        return lark_of(text, partial(_part, params))
    if kind == "grammar":
        check_rules(text)
    return grammar_from(kind, text)


def _part(params: StructuredOutputsParams, schema: Any) -> dict[str, Any]:
    """Return the schema of a part, with how its JSON is written."""
    try:
        alone = dataclasses.replace(params, json={} if schema is True else schema, structural_tag=None)
    except RequestError as error:
        raise ValueError(f"a part's {error}") from error
    return {**json.loads(_schema(alone)), "x-guidance": _style(params)}


def _schema(params: StructuredOutputsParams) -> str:
    if params.kind == "json_object":
        return json.dumps({"type": "object"})
    schema = json.loads(params.text)
    if isinstance(schema, bool):
        if not schema:
            raise ValueError("nothing is valid by the schema false")
        schema = {}
    if reason := _let_through(list(subschemas(schema))):
        raise ValueError(reason)
    return json.dumps(_closed(schema) if params.disable_additional_properties else schema)


def _let_through(nodes: Sequence[Mapping[str, Any]]) -> str | None:
    """Say what the library takes and does not enforce; found by random schemas. It merges what `allOf` holds."""
    for node in nodes:
        required = node.get("required")
        named = len(required) if isinstance(required, list) else 0
        # The same name twice is one member: what may have any name cannot be counted.
        if _number(node, "minProperties") > max(1, named):
            return "'minProperties' above 1 is not enforced where members may have any name"
        fixed = [*node.get("properties", {}), node.get("const"), node.get("enum")]
        if "\\u" in json.dumps(fixed, ensure_ascii=False):
            return "control characters in names and values are not enforced"
    bounds = [_number(node, key) for node in nodes for key in _BOUNDS if key in node]
    strict = [_number(node, key) for node in nodes for key in _BOUNDS[:2] if key in node]
    if any(value == int(value) and 0 < abs(value - other) < 1 for value in strict for other in bounds):
        return "an exclusive bound is not enforced less than 1 away from the other bound"
    return None


def _number(node: Mapping[str, Any], key: str) -> float:
    value = node.get(key, 0)
    return value if isinstance(value, int | float) and abs(value) < 1e300 else 0


def _closed(schema: Any) -> Any:
    """Return the schema with objects that name their members having no others."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        key: value if key in ("const", "enum", "default", "examples") else _closed(value)
        for key, value in schema.items()
    }
    if "properties" in schema and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


def _style(params: StructuredOutputsParams) -> Any:
    style = {"json_allowed_escapes": _ESCAPES}
    if params.disable_any_whitespace:
        return {**style, "whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    return {**style, "whitespace_pattern": params.whitespace_pattern or _WHITE_SPACE}


def _refused(params: StructuredOutputsParams, reason: str) -> RequestError:
    return RequestError(
        f"structured_outputs.{params.kind} is refused: {reason.strip()}", parameter="structured_outputs"
    )
