"""Classes that stand for a plugin's in modulm's registries, under its name. Knows no kind of plugin."""

import functools
from typing import Any, TypeVar

Kind = TypeVar("Kind")


def stand_in(base: type[Kind], theirs: Any, **said: Any) -> type[Kind]:
    """Return a subclass of `base` with the name, module and text of `theirs`, which is its `plugin_class`."""
    made = type(
        theirs.__name__,
        (base,),
        {"plugin_class": theirs, "__module__": theirs.__module__, "__doc__": theirs.__doc__, **said},
    )
    made.__qualname__ = theirs.__qualname__
    return made


def only_stand_in(base: type, theirs: Any) -> type:
    """Return the same class for the same two each time."""
    return _only(base, theirs)


@functools.cache
def _only(base: Any, theirs: Any) -> type:
    made: type = stand_in(base, theirs)
    return made
