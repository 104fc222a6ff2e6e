"""What transformers' response templates say of calls: what opens and closes one, and what the text between means.

Source: transformers' documentation of response templates. A checkpoint brings one as `response_template` in its
tokenizer's configuration. `hf.py` reads the text with it.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from modulm.errors import ConfigError
from modulm.interfaces.reading import GrowingText, Reading

_WINDOW = 512
"""How long what a pattern matches may be."""
_META = set(".^$*+?{}[]|()")
_KEY = re.compile(r"([{,]\s*)([A-Za-z_]\w*)\s*:")
_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def refused(why: str) -> ConfigError:
    """Return the error of a template that cannot be followed."""
    return ConfigError(
        f"Tool parser 'hf' is refused: it reads what the tokenizer's response_template says, and {why}. "
        "Name the model's own format, or 'auto'."
    )


class Anchor:
    """What opens or closes a field: words, or a pattern with a word at its beginning. Raises `ConfigError`.

    Attributes:
        words: One of which the text must have; none where the field has no such end.
    """

    def __init__(self, field: Mapping[str, Any], key: str) -> None:
        said, pattern = field.get(key, ()), field.get(f"{key}_pattern")
        self.words = (said,) if isinstance(said, str) else tuple(said)
        self._pattern: re.Pattern[str] | None = None
        if isinstance(pattern, str):
            try:
                self._pattern = re.compile(pattern, re.DOTALL)
            except re.error as error:
                raise refused(f"its {key}_pattern {pattern!r} is no regular expression: {error}") from error
            self.words = tuple(filter(None, [_literal_beginning(pattern)]))
            if not self.words:
                raise refused(f"its {key}_pattern {pattern!r} has no word at its beginning to look for in a stream")

    def rest(self, text: GrowingText, word: str) -> Reading[tuple[str, Mapping[str, str]] | None]:
        """Read what belongs to the anchor behind `word`; return it and what the anchor captures, None if it is none."""
        if self._pattern is None:
            return "", {}
        found = self._pattern.match(word + (yield from text.peek(_WINDOW)))
        if found is None:
            return None
        captures = {name: said for name, said in found.groupdict().items() if said is not None}
        return (yield from text.take(found.end() - len(word))), captures


class CallField:
    """The field `tool_calls`. Raises `ConfigError` for what is not documented."""

    def __init__(self, field: Mapping[str, Any]) -> None:
        self.open, self.close = Anchor(field, "open"), Anchor(field, "close")
        if not self.open.words:
            raise refused("its field 'tool_calls' has nothing that opens it")
        self._name, self._args = field.get("content", "text"), field.get("content_args") or {}
        if self._name not in _PARSERS:
            raise refused(f"content {self._name!r} is unknown. There are: {', '.join(sorted(_PARSERS))}")
        self._transform, self._is_each = field.get("transform"), field.get("transform_each") is True

    def calls(self, body: str, captures: Mapping[str, str]) -> list[tuple[str, Any]]:
        """Return the names and arguments in what stands between the anchors. Raises `ValueError`, `LookupError`."""
        value = _PARSERS[self._name](body, self._args)
        if self._transform is not None and self._is_each:
            value = [_filled(self._transform, {**captures, **item}) for item in value]
        elif self._transform is not None:
            value = _filled(self._transform, {**captures, "content": value})
        found = []
        for item in value if isinstance(value, list) else [value]:
            function = item["function"] if isinstance(item, dict) else {}
            name, arguments = function["name"], function["arguments"]
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            if not isinstance(name, str) or not name or not isinstance(arguments, dict):
                raise ValueError(f"{item!r} is no call")
            found.append((name, arguments))
        return found


def _literal_beginning(pattern: str) -> str:
    """Return the text with which all that a pattern matches begins; "" if there is none."""
    found, at = "", 0
    while at < len(pattern) and pattern[at] not in _META:
        if pattern[at] == "\\" and (at + 1 == len(pattern) or pattern[at + 1].isalnum()):
            break
        at += pattern[at] == "\\"
        found += pattern[at]
        at += 1
    depth = 0
    for each in re.findall(r"\\.|\[\^?\]?[^\]]*\]|[()|]", pattern[at:], re.DOTALL):
        depth += (each == "(") - (each == ")")
        if each == "|" and depth == 0:
            return ""
    return found[:-1] if pattern[at : at + 1] in ("*", "?", "{") else found


def _filled(transform: Any, scope: Mapping[str, Any]) -> Any:
    """Return the transform with each placeholder, `{content}` or `{content.args}`, as what it stands for."""
    if isinstance(transform, Mapping):
        return {key: _filled(each, scope) for key, each in transform.items()}
    if isinstance(transform, list):
        return [_filled(each, scope) for each in transform]
    found = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if found is None:
        return transform
    value: Any = scope
    for name in found[1].split("."):
        value = value[name]
    return value


def _text(text: str, args: Mapping[str, Any]) -> str:
    return text.strip() if args.get("strip", True) else text


def _json(text: str, args: Mapping[str, Any]) -> Any:
    quotes = [tuple(pair) for pair in args.get("string_delims", ())]
    strings = "|".join([f"{re.escape(a)}(?:.*?){re.escape(b)}" for a, b in quotes] + [r'"(?:\\.|[^"\\])*"'])
    pieces, at = [], 0

    def bare(piece: str) -> str:
        return _KEY.sub(r'\1"\2":', piece) if args.get("unquoted_keys") else piece

    for found in re.finditer(strings, text, re.DOTALL):
        pair = next(((a, b) for a, b in quotes if found[0].startswith(a) and found[0].endswith(b)), None)
        said = found[0] if pair is None else json.dumps(found[0][len(pair[0]) : -len(pair[1])], ensure_ascii=False)
        pieces += [bare(text[at : found.start()]), said]
        at = found.end()
    try:
        return json.loads("".join([*pieces, bare(text[at:])]))
    except ValueError:
        if args.get("allow_non_json"):
            return _text(text, args)
        raise


def _xml(text: str, args: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    several: set[str] = set()
    for tag in re.finditer(args["tag_pattern"], text, re.DOTALL):
        key, value = tag["key"], _inner(tag["value"], args)
        if key not in found or not args.get("merge_duplicates"):
            found[key] = value
        else:
            found[key] = [*found[key], value] if key in several else [found[key], value]
            several.add(key)
    return found


def _lines(text: str, args: Mapping[str, Any]) -> dict[str, Any]:
    pairs = [line.partition(args.get("kv_sep", ":")) for line in text.split(args.get("line_sep", "\n"))]
    return {key.strip(): _inner(value.strip(), args) for key, separator, value in pairs if separator}


def _inner(text: str, args: Mapping[str, Any]) -> Any:
    parser = args.get("value_parser")
    return text if parser is None else _PARSERS[parser.get("name", "text")](text, parser.get("args") or {})


_PARSERS: dict[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "bool": lambda text, args: _text(text, args).lower() in ("true", "1"),
    "float": lambda text, args: float(_text(text, args)),
    "int": lambda text, args: int(_text(text, args)),
    "json": _json,
    "kv-lines": _lines,
    "text": _text,
    "xml-inline": _xml,
}
