"""Which JSON Schemas outlines-core turns into an expression that enforces them. Of others it leaves parts out.

Found by giving it every keyword with documents that are wrong by it, not from its documentation.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from outlines_core.json_schema import build_regex_from_schema

from modulm.interfaces.json_schema import Enforced, JsonObject, is_plain, plain_expression, subschemas

SYNTAX_ONLY = ("date",)
"""Formats of which days that a month does not have are let through."""
_LONGEST = 512
"""Of lengths and numbers of items."""
_MOST_PROPERTIES = 300
_CHARACTER = r'[^"\\\x00-\x1F\x7F-\x9F]'
"""Of a JSON string, but for those that are written with a backslash."""


def read(text: str) -> Any:
    """Return a schema as an object; true is what allows everything."""
    schema = json.loads(text)
    return {} if schema is True else schema


def expression_of(schema: Any, white_space: str | None) -> str:
    """Return the expression that JSON text by a schema matches. Raises `ValueError` with the reason."""
    if reason := _ENFORCED.refusal(schema):
        raise ValueError(reason)
    schema = deepcopy(schema)
    for node in subschemas(schema):
        node |= {key: int(node[key]) for key in _COUNTS & node.keys()}  # "2.0" it would leave out
        if "pattern" in node:
            node["pattern"] = f"^{plain_expression(node['pattern'])}$"
        if node.keys() & _LENGTHS:
            # With escapes the number of states doubles with every character: each quote may be another beginning.
            low, high = node.pop("minLength", 0), node.pop("maxLength", "")
            node["pattern"] = f"^{_CHARACTER}{{{low},{high}}}$"
    text = json.dumps(schema, ensure_ascii=False)
    return build_regex_from_schema(text) if white_space is None else build_regex_from_schema(text, white_space)


def _also(node: JsonObject) -> str | None:
    return _object(node) or _array(node) or _string(node) or _general(node)


def _general(node: JsonObject) -> str | None:
    for name in _names_in([node.get("const"), node.get("enum")]):
        if not is_plain(name):
            return f"the name {name!r:.40} is not enforced"
    if not node.keys() & {"type", "enum", "const", "anyOf", "allOf", "$ref"}:
        return "a schema without a type is not enforced in time"
    return "'allOf' is not enforced for more than one schema" if len(node.get("allOf", ())) > 1 else None


def _object(node: JsonObject) -> str | None:
    types = node.get("type", ())
    named, others = node.get("properties"), node.get("additionalProperties")
    if "object" in types and not named and (others is None or isinstance(others, bool)):
        return "an object of any members is not enforced in time"
    for name in named or ():
        if not is_plain(name):
            return f"the name {name!r:.40} is not enforced"
    if len(named or ()) > _MOST_PROPERTIES:
        return f"'properties' names {len(named or ()):,} members, and at most {_MOST_PROPERTIES:,} are read"
    if named and others is not None and others is not False:
        return "'additionalProperties' is not enforced beside 'properties'"
    if missing := set(node.get("required", ())) - set(named or ()):
        return f"'required' is not enforced for {min(missing)!r}, which 'properties' does not name"
    return None


def _names_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names_in(each)


def _array(node: JsonObject) -> str | None:
    if "prefixItems" in node:
        if node.keys() & {"minItems", "maxItems"} or not node["prefixItems"]:
            return "'prefixItems' is not enforced beside a number of items"
    elif "array" in node.get("type", ()) and not isinstance(node.get("items"), dict):
        return "an array of any items is not enforced in time"
    return None


def _string(node: JsonObject) -> str | None:
    for key in sorted(_COUNTS & node.keys()):
        if node[key] > _LONGEST:
            return f"{key!r} above {_LONGEST} is not enforced in time"
    if "pattern" not in node:
        return "'format' is not enforced beside a length" if len(node.keys() & _TEXT) > 1 and "format" in node else None
    if node.keys() & _TEXT - {"pattern"}:
        return "'pattern' is not enforced beside a length or a format"
    try:
        plain_expression(node["pattern"])
    except ValueError as error:
        return f"'pattern': {error}"
    return None


_LENGTHS = frozenset({"minLength", "maxLength"})
_COUNTS = _LENGTHS | {"minItems", "maxItems"}
_TEXT = frozenset({"minLength", "maxLength", "pattern", "format"})
_ENFORCED = Enforced(
    by_type={
        "null": (),
        "boolean": (),
        "integer": (),
        "number": (),
        "string": _TEXT,
        "array": {"items", "prefixItems", "minItems", "maxItems"},
        "object": {"additionalProperties", "properties", "required"},
    },
    deciding={"$ref", "const", "enum", "anyOf", "allOf"},
    implying={"properties": "object"},
    formats={*SYNTAX_ONLY, "uuid"},
    also=_also,
)
