"""Regular expressions as xgrammar reads them: those that it would read otherwise than written are refused.

It matches from the first character to the last, drops `^` and `$` wherever they stand, and takes letters behind a
backslash that it does not know for themselves. Does not ask the library, which refuses more when it compiles.
"""

import re

_PART = re.compile(
    r"\\(?:u\{[^}]*\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|c[A-Za-z]|.)|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL
)
_GROUP = re.compile(r"\(\?(?!:|<\w+>)")
_LETTERS = frozenset("dDwWsSntrfvxuc0")
_ANY = "[^\\n\\r]"
"""What a dot stands for."""


def read_expression(text: str) -> str:
    """Return an expression that xgrammar reads as it is meant, for a whole text. Raises `ValueError` with the reason.

    A text that it matches is found by the expression given; where that is not anchored, there are others.
    """
    parts = _PART.findall(text.removeprefix("^"))
    if parts and parts[-1] == "$":
        parts.pop()
    for at, part in enumerate(parts):
        if part in "^$" and not _at_an_end(parts, at):
            raise ValueError(f"{part!r} is enforced at the ends of an expression only")
        for letter in re.findall(r"\\([A-Za-z0-9])", part):
            if letter not in _LETTERS:
                raise ValueError(f"'\\{letter}' is not enforced")
    expression = "".join(_ANY if part == "." else part for part in parts if part not in "^$")
    _check_structure(parts)
    return expression


def _check_structure(parts: list[str]) -> None:
    """Raise `ValueError` for groups of kinds that it drops without a word, and for what is no expression at all."""
    plain = "".join(part if len(part) == 1 and part != "." else "a" for part in parts)
    if found := _GROUP.search(plain):
        raise ValueError(f"{plain[found.start() : found.end() + 1]!r} is not enforced")
    try:
        re.compile(plain.replace("(?<", "(?P<"))
    except re.error as error:
        raise ValueError(f"it is no expression: {error.msg}") from error


def _at_an_end(parts: list[str], at: int) -> bool:
    """Whether a sign stands at the end of an alternative that is not in a group."""
    depth = sum(part == "(" for part in parts[:at]) - sum(part == ")" for part in parts[:at])
    beside = parts[at - 1 : at] if parts[at] == "^" else parts[at + 1 : at + 2]
    return depth == 0 and beside in ([], ["|"])
