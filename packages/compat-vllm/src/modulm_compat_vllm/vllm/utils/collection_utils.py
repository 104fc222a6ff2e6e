"""Lists."""

from typing import Any, Literal


def is_list_of(value: object, typ: Any, *, check: Literal["first", "all"] = "first") -> bool:
    """Whether this is a list whose first entry, or all of which, are of a type; an empty list is."""
    if not isinstance(value, list):
        return False
    return all(isinstance(each, typ) for each in (value[:1] if check == "first" else value))
