"""Importing and calling what a load record names, so that the record always tells how it went.

What may fail here: the import, the call, the type. Each is a `PluginError` that says which plugin of which package it
was; whether that ends the run is for the caller to say. Knows neither policy nor registries.
"""

import time
from typing import Any

from modulm.errors import Incompatible, PluginError
from modulm.plugins import families, refs
from modulm.plugins import records as state
from modulm.plugins.families import describe
from modulm.plugins.records import LoadRecord


def load(record: LoadRecord) -> Any:
    """Import what the record names and return it. Raises `Broken` with the cause chained."""
    started = time.perf_counter()
    try:
        found = refs.resolve(record.value, record.asked)
    except PluginError as error:
        failed(record, error)
        raise
    finally:
        _took(record, started)
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
    started = time.perf_counter()
    try:
        return function()
    except (Exception, SystemExit) as error:  # a plugin may raise anything, and must not end the engine
        raise failed(record, refs.broken(record.asked, "calling it", error)) from error
    finally:
        _took(record, started)


def load_class(record: LoadRecord, path: Any) -> type:
    """Import and check the class whose path the record's function answered."""
    if not isinstance(path, str):
        wrong = f"{record.asked} answered {describe(path)}, but must answer a class path or None."
        raise failed(record, Incompatible(wrong))
    started = time.perf_counter()
    try:
        found = refs.resolve(path, record.asked)
    except PluginError as error:
        failed(record, error)
        raise
    finally:
        _took(record, started)
    checked_class: type = checked(record, found)
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


def _took(record: LoadRecord, started: float) -> None:
    record.seconds = (record.seconds or 0.0) + time.perf_counter() - started
