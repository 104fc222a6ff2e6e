"""What a JSON schema says of an argument that is written as plain text: which types its value may have.

Follows references inside the schema, as pydantic writes them. Knows no format.
"""

import json
from collections.abc import Mapping
from typing import Any

from modulm_parsers_tools.python_text import as_json

_MAX_REFERENCES = 16
_SAYS_TYPE = {"properties": "object", "additionalProperties": "object", "items": "array", "prefixItems": "array"}


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a reference `#/...` in a schema points at, else the schema itself; an empty one for what is none."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        schema = root
        for name in reference.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return {}


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a value may have; none where the schema does not say."""
    schema = resolved(schema, root)
    types = schema.get("type")
    if isinstance(types, str):
        return frozenset([types, "null"] if schema.get("nullable") is True else [types])
    if isinstance(types, list):
        return frozenset(each for each in types if isinstance(each, str))
    found: set[str] = set()
    for name in ("anyOf", "oneOf", "allOf") if depth < _MAX_REFERENCES else ():
        alternatives = schema.get(name)
        for each in alternatives if isinstance(alternatives, list) else ():
            found |= types_of(each, root, depth + 1)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not found and isinstance(values, list):
        found = {_type_of(value) for value in values}
    return frozenset(found or (kind for name, kind in _SAYS_TYPE.items() if name in schema))


def as_value(text: str, types: frozenset[str]) -> str:
    """Return text as JSON: where it may be a string, only what is written as one of the other types is no string."""
    stripped = text.strip()
    try:
        value = json.loads(stripped, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False) if "string" in types else as_json(stripped)
    kind = _type_of(value)
    fits = kind in types or (kind == "integer" and "number" in types)
    return stripped if fits or "string" not in types else json.dumps(text, ensure_ascii=False)


def _type_of(value: Any) -> str:
    for python_type, name in _TYPES:
        if isinstance(value, python_type):
            return name
    return "null"


_TYPES = (
    (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (Mapping, "object"),
)  # fmt: skip


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
