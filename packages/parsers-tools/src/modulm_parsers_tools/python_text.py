"""Python literals as models write them -> JSON: the value of one argument of a call, read up to its end.

Tuples and sets become lists; line breaks in strings are kept. What is no literal becomes a string of its source. Knows
no format.
"""

import ast
import json
import re
from typing import Any

from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.json_text import whole_characters

_PLAIN = re.compile(r"""[^'"(\[{)\]},\\]+""")
_IN_STRING = {"'": re.compile(r"[^'\\\n\r]+"), '"': re.compile(r'[^"\\\n\r]+')}
_LINE_ENDS = {"\n": "\\n", "\r": "\\r"}
_ESCAPES = tuple("\\'\"abfnrtvxNuU01234567")
_WORDS = {"true": True, "false": False, "null": None}


def take_argument(text: GrowingText) -> Reading[str]:
    """Read a value up to the comma or bracket behind it, which is left; return its source, on one line."""
    pieces: list[str] = []
    depth = 0
    while True:
        pieces.append((yield from text.take_while(_PLAIN)))
        found = yield from text.peek()
        if not found or (depth == 0 and found in ",)]}"):
            return "".join(pieces)
        if found in _IN_STRING:
            pieces.append((yield from _take_string(text, is_raw=pieces[-1][-1:] in ("r", "R"))))
            continue
        pieces.append((yield from text.take()))
        depth += (found in "([{") - (found in ")]}")


def as_json(source: str) -> str:
    """Return a literal's source as JSON text; a string of it when it is no literal."""
    try:
        text = json.dumps(_value(ast.parse(source.strip(), mode="eval").body), ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        text = json.dumps(source.strip(), ensure_ascii=False)
    return text


def _take_string(text: GrowingText, *, is_raw: bool) -> Reading[str]:
    """Read a string; a line break in it, and a backslash that means nothing, are written so that Python takes them."""
    quote = yield from text.take()
    end = quote * 3 if (yield from text.accept(quote * 2)) else quote
    pieces = [end]
    while True:
        pieces.append((yield from text.take_while(_IN_STRING[quote])))
        if (yield from text.accept(end)):
            return "".join([*pieces, end])
        found = yield from text.take()
        if not found:
            return "".join(pieces)
        if found == "\\":
            escaped = yield from text.take()
            pieces.append(found if is_raw or escaped in _ESCAPES else found * 2)
            found = escaped
        pieces.append(_LINE_ENDS.get(found, found))


def _value(node: ast.expr) -> Any:
    """Return what a literal says, sets in the order in which they are written. Raises `ValueError`."""
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str | int | float)):
        return whole_characters(node.value) if isinstance(node.value, str) else node.value
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = [_value(key) for key in node.keys if key is not None]
        if all(key is None or isinstance(key, str | int | float) for key in keys):
            return dict(zip(keys, map(_value, node.values), strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _value(node.operand)
        if isinstance(number, int | float):
            return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    raise ValueError("no literal")
