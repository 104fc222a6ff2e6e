"""Conformance of structured-output backends (`modulm.interfaces.structured`): an output has its form, all of it.

What a form allows is judged by others: `jsonschema`, `json`, Python's `re`, the list of choices. The vocabulary is
`forms.VOCABULARY`. Forms that the backend's `supports` rejects are left out; at least one must be accepted.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import jsonschema
import pytest

from modulm.errors import RequestError
from modulm.interfaces.structured import CompiledGrammar, StructuredOutputBackend, StructuredOutputsParams
from modulm.interfaces.support import Accepted, Rejected
from modulm_testkit.forms import EMPTY, ORDINARY, TOKENS, VOCABULARY, allowed, started, takes, text_of, written
from modulm_testkit.oracles.schemas import changed, random_schema
from modulm_testkit.suite import Conformance, ask_for

_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_FORMS: tuple[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]], ...] = (
    ({"choice": ["yes", "yes sir", "no"]}, ("yes", "yes sir", "no"), ("nay", "yes!", " yes")),
    ({"choice": ["[1, 2]", "a.b"]}, ("[1, 2]", "a.b"), ("1", "axb")),
    ({"json": {"enum": ["ab", "age"]}}, ('"ab"', '"age"'), ('"b', "ab")),
    ({"json": _PERSON}, ('{"name":"ab","age":12}', '{"name": "", "age": 0}'), ('{"age":"', '{"x', "[")),
    ({"json": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}}, ("[]", "[true,false]"), ("[1", "{")),
    ({"json": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}}, ("null", "true"), ("nullt", "nulln")),
    ({"regex": "[a-c]{2}-[0-9]{1,3}"}, ("ab-1", "cc-345"), ("a-", "abc", "ab-1234")),
    ({"grammar": 'root ::= "ab" ("," "ab")*'}, ("ab", "ab,ab"), ("a,", "abab")),
    ({"json_object": True}, ("{}", '{"a":[1,null]}'), ("[", "1")),
)
"""A form; texts that have it; and beginnings that nothing which has it begins with."""
_DROPPED: dict[str, tuple[Any, str]] = {
    "type": ({"type": "integer"}, '"a"'),
    "enum": ({"enum": [1, 2]}, "3"),
    "const": ({"const": "ab"}, '"abc"'),
    "minimum": ({"type": "integer", "minimum": 3}, "2"),
    "maximum": ({"type": "integer", "maximum": 3}, "4"),
    "exclusiveMinimum": ({"type": "number", "exclusiveMinimum": 3}, "3"),
    "exclusiveMaximum": ({"type": "number", "exclusiveMaximum": 3}, "3"),
    "multipleOf": ({"type": "integer", "multipleOf": 7}, "8"),
    "minLength": ({"type": "string", "minLength": 2}, '"a"'),
    "maxLength": ({"type": "string", "maxLength": 2}, '"aaa"'),
    "pattern": ({"type": "string", "pattern": "^[a-c]+$"}, '"d"'),
    "format": ({"type": "string", "format": "uuid"}, '"d"'),
    "items": ({"type": "array", "items": {"type": "null"}}, "[1]"),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "null"}]}, "[1]"),
    "minItems": ({"type": "array", "items": {"type": "null"}, "minItems": 2}, "[null]"),
    "maxItems": ({"type": "array", "items": {"type": "null"}, "maxItems": 1}, "[null,null]"),
    "uniqueItems": ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "[null,null]"),
    "contains": ({"type": "array", "contains": {"type": "null"}}, "[1]"),
    "unevaluatedItems": ({"type": "array", "unevaluatedItems": False}, "[1]"),
    "properties": ({"type": "object", "properties": {"a": {"type": "null"}}}, '{"a":1}'),
    "required": ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, "{}"),
    "additionalProperties": ({"type": "object", "additionalProperties": {"type": "null"}}, '{"a":1}'),
    "patternProperties": ({"type": "object", "patternProperties": {"^a": {"type": "null"}}}, '{"a":1}'),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^a$"}}, '{"b":1}'),
    "minProperties": ({"type": "object", "minProperties": 1}, "{}"),
    "maxProperties": ({"type": "object", "maxProperties": 1}, '{"a":1,"b":1}'),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, '{"a":1}'),
    "dependentSchemas": ({"type": "object", "dependentSchemas": {"a": False}}, '{"a":1}'),
    "unevaluatedProperties": ({"type": "object", "unevaluatedProperties": False}, '{"a":1}'),
    "anyOf": ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, "1"),
    "allOf": ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "1"),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1"),
    "not": ({"not": {"type": "null"}}, "null"),
    "if": ({"if": {"type": "integer"}, "then": {"minimum": 3}}, "1"),
    "$ref": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "1"),
    "$ref beside others": ({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": {"type": "integer"}}}, "1"),
    "a name that comes twice": ({"type": "object", "properties": {"a": {"type": "null"}}}, '{"a":null,"a":1}'),
    "a name in escapes": ({"type": "object", "properties": {"a": {"type": "null"}}}, '{"a":null,"\\u0061":1}'),
    "names that are counted": ({"type": "object", "minProperties": 2}, '{"a":1,"a":2}'),
    "escapes that are counted": ({"type": "string", "minLength": 2}, '"\\ud83d\\ude00"'),
}
"""A schema with a keyword, and a document that is wrong by it alone."""
_NONSENSE: tuple[dict[str, Any], ...] = (
    {"json": {"type": "nonsense"}},
    {"json": {"type": "object", "properties": {"a": "b"}}},
    {"json": {"$ref": "#/$defs/none"}},
    {"json": '{"type":"array","items":' * 900 + "{}" + "}" * 900},
    {"regex": "("},
    {"regex": "[a-z]{3,1}"},
    {"grammar": "start: missing"},
    {"grammar": "root ::= ("},
    {"grammar": 'root ::= "a"\nroot ::= "b"'},
    {"structural_tag": {"type": "structural_tag"}},
)  # fmt: skip


class StructuredOutputConformance(Conformance):
    """Give `backend_class`: the class that the entry point of `modulm.structured_output` names.

    Attributes:
        num_random_schemas: Of `test_random_schemas`.
    """

    num_random_schemas: ClassVar[int] = 60

    @pytest.fixture(name="backend_class")
    def _backend_class(self) -> Any:
        """Return the class."""
        ask_for("backend_class", "MyBackend")

    @pytest.fixture
    def forms(self, backend_class: Any) -> "_Forms":
        """The forms that the backend accepts, compiled as they are asked for."""
        return _Forms(backend_class)

    def test_takes_what_has_the_form(self, forms: "_Forms") -> None:
        """Texts that have the form can be written, a byte at a time and as the tokenizer would, up to their end."""
        for compiled, right, _ in forms:
            for text in right:
                assert _takes_bytes(compiled, text.encode()), f"{text!r} is not taken as bytes"
                grammar = compiled.start()
                ids = VOCABULARY.encode(text)
                assert grammar.accept(ids), f"{text!r} is not taken as the tokens {ids}"

    def test_refuses_what_has_not(self, forms: "_Forms") -> None:
        """Where a text cannot be the beginning of anything that has the form, its tokens are not accepted."""
        for compiled, _, wrong in forms:
            for text in wrong:
                assert not _takes_bytes(compiled, text.encode()), f"{text!r} is taken"

    def test_mask_is_what_is_accepted(self, forms: "_Forms") -> None:
        """At any point, a token's bit is set if and only if `accept` takes the token."""
        for compiled, path, chance in forms.points(3, longest=6):
            bits = allowed(started(compiled, path)) & {*ORDINARY, *VOCABULARY.eos_token_ids}
            others = sorted(ORDINARY - bits)
            tried = [*chance.sample(sorted(bits), min(len(bits), 24)), *chance.sample(others, min(len(others), 24))]
            for token_id in tried:
                taken = started(compiled, path).accept([token_id])
                assert taken == (token_id in bits), f"after {text_of(path)!r}: {TOKENS[token_id]!r} taken: {taken}"

    def test_ends_where_the_form_is_complete(self, forms: "_Forms") -> None:
        """Tokens that end an output are allowed where the text has the form, all of them, and nowhere else."""
        ends = set(VOCABULARY.eos_token_ids)
        for compiled, params, texts in forms.judged():
            for text in texts:
                grammar = compiled.start()
                for at in range(len(text) + 1):
                    found, wanted = allowed(grammar) & ends, is_right(params, text[:at])
                    assert found in (set(), ends), f"after {text[:at]!r} only {found} of {ends} end it"
                    assert wanted or not found, f"{text[:at]!r} may be all, and is not right"
                    assert found or at < len(text), f"{text!r} may not be all"
                    if at < len(text) and not grammar.accept([text[at]]):
                        break

    def test_random_outputs_have_the_form(self, forms: "_Forms") -> None:
        """Whatever is chosen among what the masks allow: where it ends, it has the form."""
        for compiled, params, _ in forms.judged():
            for seed in range(6):
                ids = written(compiled, seed, most=200, ends=False)
                if not allowed(started(compiled, ids)) & ORDINARY:
                    assert is_right(params, text_of(ids)), f"{text_of(ids)!r} has not the form"

    def test_takes_back_exactly(self, forms: "_Forms") -> None:
        """Tokens taken back leave no trace, at whatever point; more than were accepted cannot be taken back."""
        for compiled, path, chance in forms.points(4, longest=30):
            count = chance.randint(0, len(path))
            grammar = started(compiled, path)
            after = allowed(grammar)
            grammar.rollback(count)
            before = started(compiled, path[: len(path) - count])
            assert allowed(grammar) == allowed(before), f"after {text_of(path)!r}, {count} tokens taken back"
            assert grammar.accept(path[len(path) - count :]), "what was taken back is not accepted again"
            assert allowed(grammar) == after

    def test_takes_back_the_end(self, forms: "_Forms") -> None:
        """The token that ends an output can be taken back like any other."""
        for compiled, right, _ in forms:
            grammar = started(compiled, right[0].encode())
            before = allowed(grammar)
            assert grammar.accept(VOCABULARY.eos_token_ids[:1])
            grammar.rollback(1)
            assert allowed(grammar) == before

    def test_says_when_nothing_else_may_follow(self, forms: "_Forms") -> None:
        """`is_terminated` is true after the end, and where nothing but the end is allowed; else it is false."""
        ends = set(VOCABULARY.eos_token_ids)
        for compiled, path, _ in forms.points(3, longest=40):
            for at in range(len(path) + 1):
                grammar = started(compiled, path[:at])
                assert grammar.is_terminated == (allowed(grammar) <= ends), f"after {text_of(path[:at])!r}"
        for compiled, right, _ in forms:
            assert started(compiled, [*right[0].encode(), VOCABULARY.eos_token_ids[0]]).is_terminated

    def test_special_tokens_are_never_allowed(self, forms: "_Forms") -> None:
        """Tokens that stand for themselves are not allowed, whatever their text, but for those that end an output."""
        special = set(VOCABULARY.special_ids) - set(VOCABULARY.eos_token_ids)
        for compiled, path, _ in forms.points(3, longest=20):
            grammar = started(compiled, path)
            assert not allowed(grammar) & special, f"after {text_of(path)!r}"

    def test_tokens_without_text_are_never_allowed(self, forms: "_Forms") -> None:
        """Tokens that add nothing, and ids behind the vocabulary up to the mask's last bit, are not allowed."""
        for compiled, path, _ in forms.points(3, longest=20):
            found = {each for each in allowed(started(compiled, path)) if each >= len(TOKENS) or each == EMPTY}
            assert not found, f"after {text_of(path)!r}: {found}"

    def test_sequences_are_independent(self, forms: "_Forms") -> None:
        """Grammars started from one compiled form do not disturb each other."""
        for compiled, path, _ in forms.points(2, longest=12):
            one, other = compiled.start(), compiled.start()
            masks = []
            for token_id in path:
                masks.append(allowed(other))
                assert one.accept([token_id])
                assert allowed(other) == masks[-1], "what one accepts changes the other"
                assert other.accept([token_id])
            assert allowed(one) == allowed(other)

    def test_forced_tokens_are_forced(self, forms: "_Forms") -> None:
        """`forced` moves nothing; its tokens are allowed in turn, and no text but theirs can be written instead."""
        for compiled, path, _ in forms.points(3, longest=12):
            grammar = started(compiled, path)
            before, forced = allowed(grammar), grammar.forced()
            assert allowed(grammar) == before, "it has moved"
            for at, token_id in enumerate(forced):
                here, rest = allowed(grammar), text_of(forced[at:])
                assert token_id in here, f"{TOKENS[token_id]!r} is not allowed after {text_of([*path, *forced[:at]])!r}"
                for other in here & {*ORDINARY, *VOCABULARY.eos_token_ids}:
                    same = rest.startswith(TOKENS[other]) or TOKENS[other].startswith(rest)
                    assert same and other not in VOCABULARY.eos_token_ids, f"{TOKENS[other]!r} instead of {rest!r}"
                assert grammar.accept([token_id])

    def test_compiles_in_several_threads(self, forms: "_Forms") -> None:
        """Forms are compiled in threads, several at once; each becomes what it is alone."""
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(forms.backend.compile, [params for params, _, _ in forms.accepted] * 3))
        for compiled, (alone, right, wrong) in zip(made, [*forms] * 3, strict=True):
            for text in (*right, *wrong):
                assert _takes_bytes(compiled, text.encode()) == _takes_bytes(alone, text.encode()), f"{text!r}"

    @pytest.mark.parametrize("keyword", _DROPPED)
    def test_no_keyword_is_dropped(self, forms: "_Forms", keyword: str) -> None:
        """Each keyword of JSON Schema is enforced, or a schema that has it is refused: none is left out silently."""
        schema, wrong = _DROPPED[keyword]
        assert not jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        ).is_valid(json.loads(wrong))
        params = StructuredOutputsParams(json=schema)
        if forms.supports(params):
            assert not takes(forms.backend.compile(params), wrong), f"{wrong} is taken by {json.dumps(schema)}"

    @pytest.mark.parametrize("form", _NONSENSE, ids=lambda form: str(form)[:60])
    def test_refusals_are_answers(self, forms: "_Forms", form: dict[str, Any]) -> None:
        """`supports` answers also where a form is nonsense, with a reason; `compile` raises `RequestError` then."""
        params = StructuredOutputsParams(**form)
        answer = forms.supports(params)
        if isinstance(answer, Rejected):
            assert answer.reason.strip(), "it rejects without a reason"
        with pytest.raises(RequestError) as caught:
            forms.backend.compile(params)
        assert caught.value.parameter == "structured_outputs", f"it names {caught.value.parameter!r}"

    def test_random_schemas(self, forms: "_Forms") -> None:
        """Of random schemas, what is not refused is enforced: what is written is valid, and so is all that is taken."""
        for seed in range(self.num_random_schemas):
            assert not (wrong := wrong_by(forms.backend, seed)), "\n".join(wrong)


class _Forms:
    """The forms that a backend accepts."""

    def __init__(self, backend_class: type[StructuredOutputBackend]) -> None:
        self.backend = backend_class(VOCABULARY)
        asked = [(StructuredOutputsParams(**form), right, wrong) for form, right, wrong in _FORMS]
        self.accepted = [each for each in asked if self.supports(each[0])]
        assert self.accepted, "it accepts no form at all"
        self._compiled = [self.backend.compile(params) for params, _, _ in self.accepted]

    def supports(self, params: StructuredOutputsParams) -> Accepted | Rejected:
        answer = type(self.backend).supports(params)
        assert isinstance(answer, Accepted | Rejected), f"it says {answer!r}"
        return answer

    def __iter__(self) -> Iterator[tuple[CompiledGrammar, Sequence[str], Sequence[str]]]:
        for compiled, (_, right, wrong) in zip(self._compiled, self.accepted, strict=True):
            yield compiled, right, wrong

    def judged(self) -> Iterator[tuple[CompiledGrammar, StructuredOutputsParams, list[bytes]]]:
        """Yield the forms that `is_right` can judge, with right texts."""
        for compiled, (params, right, _) in zip(self._compiled, self.accepted, strict=True):
            if params.kind != "grammar":
                yield compiled, params, [text.encode() for text in right]

    def points(self, count: int, longest: int) -> Iterator[tuple[CompiledGrammar, list[int], random.Random]]:
        """Yield random points that a sequence may be at, by the tokens before."""
        for at, compiled in enumerate(self._compiled):
            for seed in range(count):
                chance = random.Random(100 * at + seed)
                yield compiled, written(compiled, seed, most=seed and chance.randint(1, longest), ends=False), chance


def is_right(params: StructuredOutputsParams, text: bytes) -> bool:
    """Whether a text has a form, by the judgement of others than backends; bytes as a client sees them."""
    if params.kind == "choice":
        return text.decode(errors="replace") in (params.choice or ())
    if params.kind == "regex":
        return re.fullmatch(params.text, text.decode(errors="replace")) is not None
    try:
        value = json.loads(text.decode(errors="replace"))
    except ValueError:
        return False
    schema = json.loads(params.text) if params.kind == "json" else {"type": "object"}
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def wrong_by(backend: StructuredOutputBackend, seed: int) -> list[str]:
    """Return what is wrong with what a backend makes of the random schema of a seed."""
    chance = random.Random(seed)
    schema = random_schema(chance)
    params = StructuredOutputsParams(json=schema, disable_any_whitespace=chance.random() < 0.3)
    if not type(backend).supports(params):
        return []
    try:
        compiled = backend.compile(params)
    except RequestError:
        return []
    found = [text_of(written(compiled, each, most=150)) for each in range(3)]
    texts = {text for text in found if takes(compiled, text)}
    for text in [text.decode(errors="replace") for text in texts if is_right(params, text)]:
        near = [each.encode(errors="ignore") for each in (changed(chance, text) for _ in range(10))]
        texts |= {each for each in near if takes(compiled, each)}
    return [f"seed {seed}: {json.dumps(schema)} takes {text!r}" for text in sorted(texts) if not is_right(params, text)]


def _takes_bytes(compiled: CompiledGrammar, text: bytes) -> bool:
    return compiled.start().accept(list(text))
