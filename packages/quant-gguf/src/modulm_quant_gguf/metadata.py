"""Metadata of one GGUF file: keys to values, typed on reading. Strings of arrays are decoded on demand, and not kept.

Knows the value types of the format, not what any key means. Filled by `header.py`, read by `config.py`, `tokenizer.py`.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from modulm.errors import CheckpointError, did_you_mean

T = TypeVar("T", int, float, bool, str)
_UNSET: Any = object()
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class StringArray:
    """`count` strings still in the file, each a 64-bit length and its bytes; `raw` spans exactly these."""

    raw: memoryview
    count: int

    def decode(self, indexes: Iterable[int] | None = None) -> list[str]:
        """Return the strings, or those at `indexes`, which ascend. Raises `UnicodeDecodeError`."""
        raw, position, strings = bytes(self.raw), 0, []
        wanted = iter(range(self.count) if indexes is None else indexes)
        following = next(wanted, None)
        for index in range(self.count):
            start = position + 8
            position = start + _LENGTH.unpack_from(raw, position)[0]
            if index == following:
                strings.append(raw[start:position].decode())
                following = next(wanted, None)
        return strings


class Metadata:
    """Key-value pairs of a file whose reads check the type. Raises `CheckpointError` naming file and key."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Any:
        return iter(self._values)

    def read(self, key: str, kind: type[T], default: Any = _UNSET) -> T:
        """Return the value of `key` as `kind`, or `default`, without which a missing key is an error.

        Whole numbers pass as `float`; an `int` is never negative.
        """
        value = self._value(key, default)
        if key not in self._values:
            return value
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.refusal(key, f"is a {type(value).__name__}, not a {kind.__name__}")
        if isinstance(value, int) and value < 0:
            raise self.refusal(key, f"is {value}, below zero")
        return value

    def strings(self, key: str, indexes: Iterable[int] | None = None) -> list[str]:
        """Return an array of strings, or those at `indexes`. Raises `CheckpointError` also where one is not UTF-8."""
        try:
            return self._string_array(key).decode(indexes)
        except UnicodeDecodeError as error:
            raise self.refusal(key, f"is not valid UTF-8: {error}") from error

    def count(self, key: str) -> int:
        """Return how many strings an array has. Raises `CheckpointError`."""
        return self._string_array(key).count

    def numbers(self, key: str, length: int, default: Any = _UNSET) -> list[Any]:
        """Return the first `length` numbers of an array, or as many of `default` where the file has none."""
        value = self._value(key, default)
        if key not in self._values:
            return [value] * length
        if not isinstance(value, np.ndarray) or len(value) < length:
            raise self.refusal(key, f"is not an array of {length} numbers")
        return list(value[:length].tolist())

    def refusal(self, key: str, reason: str) -> CheckpointError:
        """Return an error that names file and key; `reason` is a clause."""
        return CheckpointError(f"Key {key!r} of {self.path} {reason}.")

    def _string_array(self, key: str) -> StringArray:
        value = self._value(key, _UNSET)
        if not isinstance(value, StringArray):
            raise self.refusal(key, "is not an array of strings")
        return value

    def _value(self, key: str, default: Any) -> Any:
        value = self._values.get(key, default)
        if value is _UNSET:
            raise CheckpointError(f"Key {key!r} is missing in {self.path}.{did_you_mean(key, self._values)}")
        return value


class Keys:
    """The metadata of one architecture: keys without their prefix, numbers checked for use as sizes."""

    def __init__(self, metadata: Metadata, arch: str) -> None:
        self.metadata = metadata
        self.arch = arch

    def __contains__(self, key: str) -> bool:
        return f"{self.arch}.{key}" in self.metadata

    def refusal(self, key: str, reason: str) -> CheckpointError:
        """Return an error that names file and key; `reason` is a clause."""
        return self.metadata.refusal(f"{self.arch}.{key}", reason)

    def whole(self, key: str, default: int = _UNSET) -> int:
        """Return a whole number of at least zero. Raises `CheckpointError`."""
        return self.metadata.read(f"{self.arch}.{key}", int, default)

    def positive(self, key: str, default: int = _UNSET) -> int:
        """Return a whole number of at least one. Raises `CheckpointError`, also where one per layer is given."""
        number = self.whole(key, default)
        if number == 0:
            raise self.refusal(key, "is zero")
        return number

    def real(self, key: str, default: Any = _UNSET) -> Any:
        """Return a number, or `default`. Raises `CheckpointError`."""
        return self.metadata.read(f"{self.arch}.{key}", float, default)
