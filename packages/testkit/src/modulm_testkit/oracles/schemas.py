"""Random JSON Schemas, and documents that are nearly valid: what `jsonschema` is to judge.

Schemas are small and use every keyword of 2020-12 that asserts, alone and beside others, also where no document can be
valid. Changes to a document are those that a grammar overlooks: a name that comes twice or in escapes, one item more.
"""

import json
import random
from typing import Any

_NAMES = ("a", "b", "name", "é", 'q"')
_TEXTS = ("", "a", "ab", "abc", "é", "😀", "name", "12", 'q"', "2024-02-29", "12:00:00Z")
_PATTERNS = (
    "^a",
    "b$",
    "^[a-c]{1,3}$",
    "^\\d+$",
    "a|b",
    "^(ab)+$",
    "^[^a]*$",
    ".",
    "^.{2}$",
    "\\w ",
    "^a$|^b$",
    "(?=a)b",
)
"""Without `\\s`: U+FEFF is white space to ECMA-262, which schemas go by, and none to Python, which judges here."""
_NUMBERS = (0, 1, 2, 3, 7, 10, 12, 100, -1, -5, 0.5, 1.5, -2.25, 1e3)
_FORMATS = ("date", "time", "date-time", "ipv4", "uuid", "email", "uri", "hostname", "nonsense")
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def random_schema(chance: random.Random, depth: int = 3) -> Any:
    """Return a schema; its references lead to `#/$defs/it`, which the outermost has."""
    schema = _schema(chance, depth)
    if '"#/$defs/it"' in json.dumps(schema):
        schema["$defs"] = {"it": _schema(chance, 1)}
        if '"#/$defs/it"' in json.dumps(schema["$defs"]):
            schema["$defs"]["it"] = {"type": "object", "properties": {"a": {"$ref": "#/$defs/it"}}}
    return schema


def _schema(chance: random.Random, depth: int) -> dict[str, Any]:
    kind = chance.choices(("typed", "typed list", "untyped", "values", "several", "ref"), (12, 1, 2, 2, 2, 1))[0]
    if kind == "values":
        values = [_value(chance, 1) for _ in range(chance.randint(1, 3))]
        schema: dict[str, Any] = {"const": values[0]} if chance.random() < 0.4 else {"enum": values}
        return {**schema, **({"type": chance.choice(_TYPES)} if chance.random() < 0.2 else {})}
    if kind == "several" and depth:
        keyword = chance.choice(("anyOf", "anyOf", "anyOf", "allOf", "oneOf", "not", "if"))
        if keyword in ("not", "if"):
            schema = {keyword: _schema(chance, depth - 1)}
            return schema if keyword == "not" else {**schema, "then": _schema(chance, depth - 1)}
        schema = {keyword: [_schema(chance, depth - 1) for _ in range(chance.randint(1, 3))]}
        return {**schema, **(_keywords(chance, 0, "integer") if chance.random() < 0.2 else {})}
    if kind == "ref":
        return {"$ref": "#/$defs/it", **({"minimum": 3} if chance.random() < 0.2 else {})}
    types = chance.sample(_TYPES, 2) if kind == "typed list" else [chance.choice(_TYPES[2:] if depth else _TYPES[:5])]
    schema = {} if kind == "untyped" else {"type": types if kind == "typed list" else types[0]}
    for each in types:
        schema |= _keywords(chance, depth, each)
    return schema


def _keywords(chance: random.Random, depth: int, kind: str) -> dict[str, Any]:
    """Return some keywords for a type, each with a chance of its own."""

    def inner() -> Any:
        return chance.choice((True, False)) if chance.random() < 0.08 else _schema(chance, max(depth - 1, 0))

    count = chance.randint(0, 3)
    names = chance.sample(_NAMES, chance.randint(1, 3))
    low, high = sorted((chance.choice(_NUMBERS), chance.choice(_NUMBERS)))
    offered: dict[str, tuple[float, dict[str, Any]]] = {}
    if kind in ("integer", "number"):
        offered = {
            "low": (0.4, {chance.choice(("minimum", "exclusiveMinimum")): low}),
            "high": (0.4, {chance.choice(("maximum", "exclusiveMaximum")): high}),
            "of": (0.15, {"multipleOf": chance.choice((2, 3, 7, 0.5, 1.5, 1000))}),
        }
    elif kind == "string":
        offered = {
            "least": (0.3, {"minLength": count}),
            "most": (0.3, {"maxLength": count + chance.randint(0, 2)}),
            "pattern": (0.3, {"pattern": chance.choice(_PATTERNS)}),
            "format": (0.1, {"format": chance.choice(_FORMATS)}),
        }
    elif kind == "array":
        offered = {
            "items": (0.7, {"items": inner()}),
            "prefix": (0.15, {"prefixItems": [inner() for _ in range(chance.randint(1, 2))]}),
            "least": (0.3, {"minItems": count}),
            "most": (0.3, {"maxItems": count + chance.randint(0, 2)}),
            "other": (0.1, chance.choice(({"uniqueItems": True}, {"contains": inner()}, {"unevaluatedItems": False}))),
        }
    elif kind == "object":
        others = (
            {"propertyNames": {"pattern": "^a"}},
            {"dependentRequired": {names[0]: [chance.choice(_NAMES)]}},
            {"dependentSchemas": {names[0]: inner()}},
            {"unevaluatedProperties": False},
        )
        offered = {
            "properties": (0.8, {"properties": {name: inner() for name in names}}),
            "required": (0.5, {"required": chance.sample(names if chance.random() < 0.8 else _NAMES, 1)}),
            "additional": (0.4, {"additionalProperties": False if chance.random() < 0.6 else inner()}),
            "patterns": (0.1, {"patternProperties": {chance.choice(_PATTERNS[:5]): inner()}}),
            "least": (0.15, {"minProperties": count}),
            "most": (0.15, {"maxProperties": count + 1}),
            "other": (0.1, chance.choice(others)),
        }
    chosen: dict[str, Any] = {}
    for share, keyword in offered.values():
        if chance.random() < share:
            chosen |= keyword
    return chosen


def _value(chance: random.Random, depth: int) -> Any:
    simple: list[Any] = [None, True, False, *_NUMBERS, *_TEXTS]
    if not depth or chance.random() < 0.7:
        return chance.choice(simple)
    if chance.random() < 0.5:
        return [_value(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    return {name: _value(chance, depth - 1) for name in chance.sample(_NAMES, chance.randint(0, 3))}


def changed(chance: random.Random, text: str) -> str:
    """Return JSON text with one change, that is JSON still."""
    value = json.loads(text)
    kind = chance.choice(("again", "escape", "value", "value", "value", "spelling"))
    if kind == "again" and isinstance(value, dict) and value:
        name = chance.choice(sorted(value))
        return f"{_text(chance, value)[:-1]},{json.dumps(name)}:{json.dumps(_value(chance, 1))}}}"
    if kind == "escape" and isinstance(value, dict) and value:
        name = chance.choice([each for each in sorted(value) if each] or ["a"])
        spelt = f"\\u{ord(name[0]):04x}" + json.dumps(name[1:])[1:-1] if ord(name[0]) < 0x10000 else name
        return f'{_text(chance, value)[:-1]},"{spelt}":{json.dumps(_value(chance, 1))}}}'
    if kind == "spelling":
        return json.dumps(value) if chance.random() < 0.5 else _text(chance, value)
    return _text(chance, _nearly(chance, value))


def _text(chance: random.Random, value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":") if chance.random() < 0.5 else (", ", ": "))


def _nearly(chance: random.Random, value: Any) -> Any:
    """Return a value with one part of it changed."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(sorted(value))
        inner = {name: _nearly(chance, value[name])}
        without = {each: one for each, one in value.items() if each != name}
        return chance.choice((value | inner, without, value | {chance.choice(_NAMES): _value(chance, 0)}))
    if isinstance(value, list) and chance.random() < 0.8:
        at = chance.randrange(len(value)) if value else 0
        changes = [[*value, *value[:1]], [*value, _value(chance, 0)], value[1:], value[:at] + value[at + 1 :]]
        changes += [[*value[:at], _nearly(chance, value[at]), *value[at + 1 :]]] * 3 if value else []
        return chance.choice(changes)
    if isinstance(value, str) and chance.random() < 0.7:
        return chance.choice((value + "a", value[1:], value + value, "é" + value, value + "\n", value.upper()))
    if isinstance(value, int | float) and not isinstance(value, bool) and chance.random() < 0.7:
        return chance.choice((value + 1, value - 1, value + 0.5, -value, value * 10, value * 1000))
    return _value(chance, 1)
