"""Regular expressions as outlines-core reads them: from the first character to the last, and never NUL.

NUL stands for the end (`backend.py`); it is taken out of every set that says what is not in it.
"""

import re

_PART = re.compile(r"\\[pPdDwWsS]\{[^}]*\}|\\.|\(\?(?:P?<\w+>|.)|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|.", re.DOTALL)
_MOST_REPEATS = 512
_CLASSES = ("\\D", "\\W", "\\S", "\\P", "\\p")


def read_expression(text: str) -> str:
    """Return an expression without its anchors and without NUL. Raises `ValueError` with the reason."""
    if any(int(count) > _MOST_REPEATS for count in re.findall(r"\d+(?=[,\d]*\})", text)):
        raise ValueError(f"more than {_MOST_REPEATS} repeats are not enforced in time")
    parts = _PART.findall(text.removeprefix("^"))
    if parts and parts[-1] == "$":
        parts.pop()
    made = []
    for part in parts:
        if part.startswith("(?") and part != "(?:" and not part.endswith(">"):
            raise ValueError(f"{part!r} is not enforced")
        if part == ".":
            made.append("[^\\n\\r\\x00]")
        elif (part.startswith("[") and len(part) > 1) or part.startswith(_CLASSES):
            made.append(f"[{part}--\\x00]")
        else:
            made.append(part)
    return "".join(made)
