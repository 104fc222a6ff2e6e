"""Which JSON Schemas xgrammar enforces to the last keyword. Others it takes too, and leaves out what it cannot do.

Found by giving it every keyword with documents that are wrong by it, not from its documentation.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from modulm.interfaces.json_schema import Enforced, JsonObject, subschemas
from modulm_structured_xgrammar.expressions import read_expression

_MOST_PROPERTIES = 2000
_MOST_DEPTH = 64
"""Beyond them its time grows with the square and more: 20,000 properties take minutes."""
_LARGEST_FACTOR = 1024
"""Of `multipleOf`; larger ones it drops."""
SYNTAX_ONLY = ("date", "date-time", "time")
"""Formats of which days that a month does not have, and wrong leap seconds, are let through."""
_STRING = frozenset({"minLength", "maxLength", "pattern", "format"})
_FORMATS = frozenset({*SYNTAX_ONLY, "duration", "ipv6", "uuid"})
_LONGEST = 256
"""Of `minLength`: larger ones take seconds and minutes."""
_UNWRITTEN = re.compile(r"""["\x00-\x1f]|\\\\|\\(?:[tnrfv0]|c.|x[01].|u00[01].|x22|x5[cC]|u0022|u005[cC])""")
"""What stands in a JSON string only with a backslash, which patterns of xgrammar do not write."""


def rewritten(schema: Any) -> Any:
    """Return a schema with lengths as patterns: where xgrammar counts characters it lets control characters through."""
    schema = deepcopy(schema)
    for node in subschemas(schema):
        if _lengths(node):
            low, high = int(node.pop("minLength", 0)), node.pop("maxLength", "")
            node["pattern"] = f"^[^\\x00-\\x1f]{{{low},{high and int(high)}}}$"
    return schema


def patterns_in(schema: Any) -> Iterator[str]:
    """Yield the regular expressions of a schema that is enforced, as they are to be read."""
    for node in subschemas(schema):
        for pattern in (*node.get("patternProperties", ()), *([node["pattern"]] if "pattern" in node else ())):
            yield read_expression(pattern)


def refusal(schema: Any) -> str | None:
    """Say what of a schema is not enforced; None where all is."""
    if _depth(schema) > _MOST_DEPTH:
        return f"it is nested more than {_MOST_DEPTH} deep"
    return _ENFORCED.refusal(schema)


def _also(node: JsonObject) -> str | None:
    return _object(node) or _array(node) or _number(node) or _string(node) or _false(node)


def _object(node: JsonObject) -> str | None:
    named, others = node.get("properties", {}), node.get("additionalProperties", False)
    patterns = node.get("patternProperties", {})
    if len(named) > _MOST_PROPERTIES:
        return f"'properties' names {len(named):,} members, and at most {_MOST_PROPERTIES:,} are read"
    if missing := set(node.get("required", ())) - set(named):
        return f"'required' is not enforced for {min(missing)!r}, which 'properties' does not name"
    if named and others is not False:
        return "'additionalProperties' is not enforced beside 'properties'"
    if patterns and (named or others is not False or "additionalProperties" not in node or len(patterns) > 1):
        return "'patternProperties' is not enforced but for one pattern, with no other members"
    # The same name twice is one member: what may have any name cannot be counted.
    if node.get("minProperties", 0) > 1 and not named:
        return "'minProperties' above 1 is not enforced where members may have any name"
    if others is False and not patterns and node.get("minProperties", 0) > len(named):
        return "'minProperties' is not enforced above the number of members that 'properties' names"
    return next((reason for pattern in patterns if (reason := _pattern(pattern))), None)


def _array(node: JsonObject) -> str | None:
    before = node.get("prefixItems", [])
    if any(each is True for each in before):
        return "true is not enforced as a schema in 'prefixItems'"
    if node.get("items", False) is False and node.get("minItems", 0) > len(before):
        return "'minItems' is not enforced above the number of 'prefixItems' without 'items'"
    return (
        "'maxItems' is below the number of 'prefixItems'" if node.get("maxItems", len(before)) < len(before) else None
    )


def _number(node: JsonObject) -> str | None:
    factor = node.get("multipleOf")
    if factor is not None:
        if node.get("type") != "integer" or factor != int(factor) or not 0 < factor <= _LARGEST_FACTOR:
            return f"'multipleOf': {factor!r} is not enforced, but for integers and up to {_LARGEST_FACTOR}"
        if node.keys() & _BOUNDS:
            return "'multipleOf' is not enforced beside a bound"
    for bound in sorted(node.keys() & _BOUNDS):
        value = node[bound]
        if abs(value) >= 2**53 or round(value, 6) != value:
            return f"{bound!r}: {value!r} is not enforced, having too many digits"
        if "integer" in node.get("type", ()) and value != int(value):
            return f"{bound!r}: {value!r} is not enforced for integers"
    return None


def _string(node: JsonObject) -> str | None:
    if "pattern" not in node:
        if node.get("minLength", 0) > _LONGEST:
            return f"'minLength' above {_LONGEST} is not enforced in time"
        return "'format' is not enforced beside a length" if "format" in node and _lengths(node) else None
    if "format" in node or _lengths(node):
        return "'pattern' is not enforced beside a length or a format"
    return _pattern(node["pattern"])


def _lengths(node: JsonObject) -> bool:
    return "minLength" in node or "maxLength" in node


def _pattern(pattern: str) -> str | None:
    if found := _UNWRITTEN.search(pattern):
        return f"'pattern': {found[0]!r}, which JSON writes with a backslash, is not enforced"
    try:
        read_expression(pattern)
    except ValueError as error:
        return f"'pattern': {error}"
    return None


def _false(node: JsonObject) -> str | None:
    """False is a schema that nothing is valid by, which xgrammar reads only where nothing need stand."""
    several = [*node.get("properties", {}).values(), *node.get("patternProperties", {}).values()]
    several += [each for key in ("anyOf", "allOf", "prefixItems") for each in node.get(key, ())]
    if any(each is False for each in several):
        return "false is not enforced as the schema of a member or item"
    return "'allOf' is not enforced for more than one schema" if len(node.get("allOf", ())) > 1 else None


def _depth(schema: Any) -> int:
    """Return how deeply objects and lists are nested, without going down on Python's own stack."""
    depth, level = 0, [schema]
    while level:
        depth += 1
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    return depth


_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_ENFORCED = Enforced(
    by_type={
        "null": (),
        "boolean": (),
        "integer": {*_BOUNDS, "multipleOf"},
        "number": _BOUNDS,
        "string": _STRING,
        "array": {"items", "prefixItems", "minItems", "maxItems"},
        "object": {
            "additionalProperties", "maxProperties", "minProperties", "patternProperties", "properties", "required",
        },
    },
    deciding={"$ref", "const", "enum", "anyOf", "allOf"},
    implying={"additionalProperties": "object", "items": "array", "prefixItems": "array", "properties": "object"},
    formats=_FORMATS,
    mixed=True,
    also=_also,
)  # fmt: skip
