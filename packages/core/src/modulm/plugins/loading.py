"""Importing and calling what a load record names, so that the record always tells how it went.

What may fail here: the import, the call, the type. Each is a `PluginError` that says which plugin of which package it
was; whether that ends the run is for the caller to say. Knows neither policy nor registries.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from modulm.errors import Incompatible, PluginError
from modulm.plugins import families, refs
from modulm.plugins import records as state
from modulm.plugins.families import describe
from modulm.plugins.records import LoadRecord
from modulm.plugins.watch import watched

T = TypeVar("T")


def load(record: LoadRecord) -> Any:
    """Import what the record names and return it. Raises `Broken` with the cause chained."""
    found = _resolved(record, record.value)
    record.state, record.reason = state.LOADED, ""
    return found


def call(record: LoadRecord) -> Any:
    """Import the function that the record names, call it without arguments, and return its answer.

    Raises `Broken` with the cause chained, or `Incompatible` when it cannot be called.
    """
    function = load(record)
    if not callable(function):
        wrong = f"{record.asked} is {describe(function)}, but must be callable without arguments."
        raise failed(record, Incompatible(wrong))
    return run(record, "calling it", function)


def run(
    record: LoadRecord, doing: str, function: Callable[..., T], *args: Any, passing: tuple[Any, ...] = refs.PASSING
) -> T:
    """Call into a plugin. Whatever it raises is `Broken`, with the cause chained, but for `passing`."""
    try:
        with watched(record, doing):
            return function(*args)
    except passing:
        raise
    except BaseException as error:
        raise failed(record, refs.broken(record.asked, doing, error)) from error


def load_class(record: LoadRecord, path: Any) -> type:
    """Import and check the class whose path the record's function answered."""
    if not isinstance(path, str):
        wrong = f"{record.asked} answered {describe(path)}, but must answer a class path or None."
        raise failed(record, Incompatible(wrong))
    checked_class: type = checked(record, _resolved(record, path))
    return checked_class


def checked(record: LoadRecord, found: Any) -> Any:
    """Return `found` as `families.check` does, if it is what the record's group asks for; else raise `Incompatible`."""
    try:
        return families.check(record.group, record.asked, found)
    except PluginError as error:
        failed(record, error)
        raise


def failed(record: LoadRecord, error: PluginError) -> PluginError:
    """Note in the record that it failed, and return the error to raise."""
    record.state, record.reason = state.BROKEN, str(error)
    return error


def _resolved(record: LoadRecord, reference: str) -> Any:
    try:
        with watched(record, f"loading {reference!r}"):
            return refs.resolve(reference, record.asked)
    except PluginError as error:
        failed(record, error)
        raise
