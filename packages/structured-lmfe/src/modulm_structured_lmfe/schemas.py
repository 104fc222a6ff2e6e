"""Which JSON Schemas lm-format-enforcer enforces to the last keyword. Others it takes too, and leaves out the rest.

Found by giving it every keyword with documents that are wrong by it, not from its documentation.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from modulm.interfaces.json_schema import Enforced, JsonObject, is_plain, plain_expression, subschemas

_MOST_PROPERTIES = 2000
"""Each token looks at all of them, in Python."""


def read(text: str) -> Any:
    """Return a schema as the library is to read it. Raises `ValueError` with what would not be enforced."""
    schema = json.loads(text)
    if schema is True or schema == {}:
        return None
    if isinstance(schema, bool):
        raise ValueError("nothing is valid by the schema false")
    if reason := _ENFORCED.refusal(schema):
        raise ValueError(reason)
    if "$defs" in schema and "definitions" in schema:
        raise ValueError("'$defs' is not read beside 'definitions'")
    for node in subschemas(schema):
        open_kinds = [kind for each in node.get("anyOf", ()) for kind in _open_kinds(each, schema)]
        for kind in ("string", "array"):
            if open_kinds.count(kind) > 1:
                raise ValueError(f"'anyOf' is not enforced where several of its schemas are of type {kind!r}")
    schema = deepcopy(schema)
    for node in subschemas(schema):
        if "pattern" in node:
            node["pattern"] = plain_expression(node["pattern"])
        if node.get("additionalProperties") is True:
            del node["additionalProperties"]
    return schema


def _open_kinds(node: JsonObject, root: JsonObject) -> Iterator[str]:
    """Yield what values may be of strings and lists: two of a kind at once lose track of an escape, or of an end."""
    if "$ref" in node:
        _, where, name = node["$ref"].split("/")
        yield from _open_kinds(root[where][name], root)
    for each in node.get("anyOf", ()):
        yield from _open_kinds(each, root)
    types = node.get("type", ())
    if not node.keys() & {"const", "enum", "pattern"}:
        yield from (kind for kind in ("string", "array") if kind in types)


_COUNTED = ("null", "boolean", "integer", "number", "string", "object")


def fixed_texts(schema: Any) -> Iterator[str]:
    """Yield the names and values that a schema spells out."""
    for node in subschemas(schema or {}):
        yield from node.get("properties", {})
        yield from (str(value) for value in [node.get("const", ""), *node.get("enum", [])])


def _also(node: JsonObject) -> str | None:
    return _general(node) or _object(node) or _string(node) or _values(node)


def _general(node: JsonObject) -> str | None:
    if not node.keys() & {"type", "enum", "const", "anyOf", "$ref"}:
        return "a schema without a type is not enforced inside another"
    held = [*node.get("anyOf", ()), *node.get("$defs", {}).values(), *node.get("definitions", {}).values()]
    if any(isinstance(each, bool) for each in held):
        return "a boolean is not enforced as a schema"
    parts = node.get("$ref", "#/$defs/it").split("/")
    if len(parts) != 3 or parts[1] not in ("$defs", "definitions") or set(parts[2]) & set("~%"):
        return f"'$ref': {node['$ref']!r:.60} is not enforced, only names in '$defs'"
    items = node.get("items", {})
    if isinstance(items, bool):
        return "'items' is not enforced as a boolean"
    if "minItems" in node or "maxItems" in node:
        if node.get("maxItems") == 0:
            return "'maxItems': 0 is not enforced"
        if items.get("type", "array") not in _COUNTED and not items.keys() & {
            "enum",
            "const",
        }:  # a list in a list counts
            return "a number of items is not enforced where the items may be lists"
    for low, high in (("minItems", "maxItems"), ("minLength", "maxLength")):
        if high in node and node.get(low, 0) > node[high]:
            return f"{low!r} is above {high!r}"
    return None


def _object(node: JsonObject) -> str | None:
    named, others = node.get("properties"), node.get("additionalProperties")
    if named is None:
        return "'additionalProperties' is not enforced without 'properties'" if others is False else None
    if others is not None and others is not False:
        return "'additionalProperties' is not enforced beside 'properties'"
    if len(named) > _MOST_PROPERTIES:
        return f"'properties' names {len(named):,} members, and at most {_MOST_PROPERTIES:,} are read"
    for name, each in named.items():
        if not name or not is_plain(name) or isinstance(each, bool):
            return f"the member {name!r:.40} is not enforced"
    if missing := set(node.get("required", ())) - set(named):
        return f"'required' is not enforced for {min(missing)!r}, which 'properties' does not name"
    return None


def _string(node: JsonObject) -> str | None:
    if node.get("maxLength") == 0:
        return "'maxLength': 0 is not enforced"
    if node.get("minLength", 0) > 1:  # two escapes may be one character
        return "'minLength' above 1 is not enforced"
    if "pattern" not in node:
        return None
    if node.keys() & {"minLength", "maxLength"}:
        return "'pattern' is not enforced beside a length"
    try:
        plain_expression(node["pattern"])
    except ValueError as error:
        return f"'pattern': {error}"
    return None


def _values(node: JsonObject) -> str | None:
    values = [node["const"]] if "const" in node else node.get("enum", [])
    if all(isinstance(value, str) and value and is_plain(value) for value in values):
        return None
    if "const" not in node and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return None
    return f"{'const' if 'const' in node else 'enum'!r} is not enforced but for plain texts, or for numbers in 'enum'"


_ENFORCED = Enforced(
    by_type={
        "null": (),
        "boolean": (),
        "integer": (),
        "number": (),
        "string": {"minLength", "maxLength", "pattern"},
        "array": {"items", "minItems", "maxItems"},
        "object": {"additionalProperties", "properties", "required"},
    },
    deciding={"$ref", "const", "enum", "anyOf"},
    also=_also,
)
