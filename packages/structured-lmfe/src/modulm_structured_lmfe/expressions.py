"""Regular expressions as lm-format-enforcer is to read them. Does not ask the library, which refuses more of them."""

import re

_MOST_REPEATS = 500
"""All states of an expression are worked out at once, in Python."""


def read_expression(text: str) -> str:
    """Return an expression without its anchors, for a whole text. Raises `ValueError` with the reason."""
    text = text.removeprefix("^")
    text = text[:-1] if re.search(r"(?<!\\)(?:\\\\)*\$\Z", text) else text
    if any(int(count) > _MOST_REPEATS for count in re.findall(r"\d+(?=[,\d]*\})", text)):
        raise ValueError(f"more than {_MOST_REPEATS} repeats are not enforced in time")
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"the expression is not read: {error}") from error
    return text
