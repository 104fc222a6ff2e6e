"""JSON Schema, as a backend of structured output looks at it before it takes one on.

Libraries that write by a schema leave out what they do not know. `Enforced` is the table of what one does enforce, and
names the first keyword that would be dropped. Knows no library; what else a backend needs to know of a schema's values
it says in `also`. Source: JSON Schema 2020-12, Core and Validation.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

JsonObject = dict[str, Any]
_PART = re.compile(r"\\.|\(\?.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_PLAIN_PART = re.compile(r"[\w !#%&',/:;<=>@`~()|*+?{}-]|\(\?:|\\[.^$*+?()\[\]{}|/-]")
_PLAIN_SET = re.compile(r"\[(?:[\w !#%&',./:;<=>@`~()|*+?{}$-]|\\[d.^$*+?()\[\]{}|/-])+\]")
_COUNTS = frozenset(
    f"{bound}{what}" for bound in ("min", "max") for what in ("Length", "Items", "Properties", "Contains")
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_ONE = frozenset({
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_DECIDING = ("$ref", "const", "enum", "anyOf", "allOf", "oneOf", "not", "if", "then", "else")
"""They say alone what is valid: a library that looks at one of them forgets what stands beside it."""
_ASSERTING = frozenset({
    *_COUNTS, *_NUMBERS, *_ONE, *_SEVERAL, *_NAMED, *_DECIDING, "$dynamicRef", "$recursiveRef", "dependencies",
    "dependentRequired", "discriminator", "divisibleBy", "disallow", "extends", "format", "nullable", "pattern",
    "required", "type", "uniqueItems",
}) - {"$defs", "definitions"}  # fmt: skip
"""Keywords of any draft, and of OpenAPI, that say what is valid. Others are annotations, whatever they are."""
_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


@dataclass(frozen=True, kw_only=True)
class Enforced:
    """What a library enforces.

    Attributes:
        by_type: Type -> keywords that it enforces beside `type`. A type that is left out is not enforced.
        deciding: Those of `$ref`, `const`, `enum`, `anyOf`, `allOf`, `oneOf`, `not`, `if` that it enforces where they
            stand alone, or beside a `type` that all of their values have.
        implying: Keywords that stand for a type where there is no `type`.
        formats: Values of `format`.
        mixed: Whether keywords are enforced beside a list of types.
        also: Gets a schema that is no boolean and says why it is not enforced, or None.
    """

    by_type: Mapping[str, Collection[str]]
    deciding: Collection[str]
    implying: Mapping[str, str] = field(default_factory=dict)
    formats: Collection[str] = ()
    mixed: bool = False
    also: Callable[[JsonObject], str | None] = lambda schema: None

    def refusal(self, schema: Any) -> str | None:
        """Say what of a schema would not be enforced, and where; None where all is. Must be JSON; raises nothing."""
        try:
            nodes = dict(_walk(schema, "#"))
            for pointer, node in nodes.items():
                if not isinstance(node, bool) and (reason := self._reason(node) or self.also(node)):
                    return f"{reason} (at {pointer})"
            return _wrong_references(nodes)
        except RecursionError:
            return "it is nested too deeply"
        except ValueError as error:
            return str(error)

    def _reason(self, node: JsonObject) -> str | None:
        asked = node.keys() & _ASSERTING
        if wrong := _malformed(node):
            return wrong
        if "format" in asked and node["format"] not in self.formats:
            return f"format {node['format']!r:.40} is not enforced"
        deciding = [key for key in _DECIDING if key in asked]
        if deciding:
            return self._deciding_reason(node, deciding[0], asked - {deciding[0]})
        types = [node["type"]] if isinstance(node.get("type"), str) else node.get("type")
        others = asked - {"type"}
        if types is None:
            if not others or any(
                others <= set(self.by_type[self.implying[key]]) for key in others & self.implying.keys()
            ):
                return None
            return f"{_first(others)} is not enforced without 'type'"
        for each in types:
            if each not in self.by_type:
                return f"type {each!r:.40} is not enforced" if each in _TYPES else f"type {each!r:.40} is unknown"
        if others and len(types) > 1 and not self.mixed:
            return f"{_first(others)} is not enforced beside a list of types"
        missing = others - set[str]().union(*(self.by_type[each] for each in types))
        return f"{_first(missing)} is not enforced beside type {types[0]!r}" if missing else None

    def _deciding_reason(self, node: JsonObject, key: str, others: set[str]) -> str | None:
        if key not in self.deciding:
            return f"{key!r} is not enforced"
        if "type" in others and key in ("const", "enum"):
            values = node["enum"] if key == "enum" else [node["const"]]
            types = node["type"] if isinstance(node["type"], list) else [node["type"]]
            if all(any(each in _TYPES and _TYPES[each](value) for each in types) for value in values):
                others = others - {"type"}
        return f"{_first(others)} is not enforced beside {key!r}" if others else None


def _walk(schema: Any, pointer: str) -> Iterator[tuple[str, JsonObject | bool]]:
    """Yield every schema in a schema with its JSON pointer. Raises `ValueError` for what is none."""
    if isinstance(schema, bool):
        yield pointer, schema
        return
    if not isinstance(schema, dict):
        raise ValueError(f"a schema must be an object or a boolean, and not {schema!r:.40} (at {pointer})")
    if pointer != "#" and "$id" in schema:
        raise ValueError(f"'$id' inside a schema is not read (at {pointer})")
    yield pointer, schema
    for key, value in schema.items():
        at = f"{pointer}/{key}"
        if key in _NAMED or key in _SEVERAL or (key == "items" and isinstance(value, list)):
            if not isinstance(value, dict if key in _NAMED else list):
                raise ValueError(f"{key!r} holds {value!r:.40}, and no schemas (at {pointer})")
            for name, each in value.items() if isinstance(value, dict) else enumerate(value):
                yield from _walk(each, f"{at}/{str(name).replace('~', '~0').replace('/', '~1')}")
        elif key in _ONE:
            yield from _walk(value, at)


def _malformed(node: JsonObject) -> str | None:
    """Say which keyword has a value of the wrong kind; in old drafts some mean something else."""
    for key, value in node.items():
        good = True
        if key in _COUNTS:
            good = _is_number(value) and value >= 0 and value == int(value)
        elif key in _NUMBERS:
            good = _is_number(value)
        elif key in ("required", "enum") or (key == "type" and not isinstance(value, str)):
            good = isinstance(value, list) and (key == "enum" or all(isinstance(each, str) for each in value))
            good = good and (bool(value) or key == "required")
        elif key in ("pattern", "$ref", "format"):
            good = isinstance(value, str)
        if not good or (key == "items" and isinstance(value, list)):
            return f"{key!r}: {value!r:.40} is not understood"
    return None


def _wrong_references(nodes: Mapping[str, JsonObject | bool]) -> str | None:
    """Say which reference leads nowhere, or back to itself without anything written in between."""
    following: dict[str, list[str]] = {}
    for pointer, node in nodes.items():
        if isinstance(node, bool):
            continue
        several = [(key, len(node[key])) for key in ("anyOf", "allOf", "oneOf") if key in node]
        following[pointer] = [f"{pointer}/{key}/{at}" for key, count in several for at in range(count)]
        if "$ref" in node:
            target = unquote(node["$ref"])
            if target not in nodes:
                return f"'$ref': {node['$ref']!r:.80} leads to no schema in this one"
            following[pointer].append(target)
    done: set[str] = set()
    for start in following:
        if _returns(start, following, done, ()):
            return f"'$ref' leads back to itself (at {start})"
    return None


def _returns(pointer: str, following: Mapping[str, list[str]], done: set[str], path: tuple[str, ...]) -> bool:
    if pointer in path:
        return True
    if pointer not in done and any(
        _returns(one, following, done, (*path, pointer)) for one in following.get(pointer, ())
    ):
        return True
    done.add(pointer)
    return False


def subschemas(schema: Any) -> Iterator[JsonObject]:
    """Yield every schema in a schema that is no boolean, itself first. Raises `ValueError` for what is none."""
    try:
        yield from (node for _, node in _walk(schema, "#") if not isinstance(node, bool))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def reported(schema: Any, formats: Collection[str]) -> str:
    """Return a note for `Accepted` that names formats of which only the syntax is enforced; empty for none."""
    found = sorted({node["format"] for node in subschemas(schema) if "format" in node} & set(formats))
    return f"of format {', '.join(found)} only the syntax is enforced" if found else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) != float("inf")


def _first(keys: Collection[str]) -> str:
    return repr(min(keys))


def is_plain(text: str) -> bool:
    """Say whether a text stands in JSON as it is, without escapes."""
    return json.dumps(text, ensure_ascii=False) == f'"{text}"'


def plain_expression(pattern: str) -> str:
    """Return a `pattern` without its anchors, for libraries that match from end to end and know nothing of JSON.

    It is made of characters that JSON writes as they are, of groups, alternatives, repeats, and sets that say what is
    in them; digits are spelt out. What it matches the pattern finds too; where that is not anchored, there is more.
    Raises `ValueError` for other patterns.
    """
    parts = _PART.findall(pattern.removeprefix("^"))
    if parts and parts[-1] == "$":
        parts.pop()
    made = []
    for part in parts:
        is_set = len(part) > 1 and part[0] == "["
        if part == r"\d":
            part = "[0-9]"
        elif not (_PLAIN_SET if is_set else _PLAIN_PART).fullmatch(part):
            raise ValueError(f"{part!r} is not enforced")
        made.append(part.replace(r"\d", "0-9"))
    return f"({''.join(made)})"
