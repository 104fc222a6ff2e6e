"""Reads the head of a GGUF file, version 2 or 3: metadata and the tensor table, every number checked before it is used.

Trusts nothing: a damaged or hostile file gives a `CheckpointError` that names the key or tensor, never a crash, a hang
or an allocation larger than the file. Knows no architecture. Format: docs/gguf.md of the ggml repository.
"""

import math
import mmap
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modulm.errors import CheckpointError
from modulm_quant_gguf.ggml_types import KNOWN, GGMLType, ggml_type
from modulm_quant_gguf.metadata import Metadata, StringArray

MAGIC = b"GGUF"
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8"}
_DTYPES = {number: np.dtype(code).newbyteorder("<") for number, code in _SCALARS.items()}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_MAX_DIMENSIONS = 4
_MAX_NAME_BYTES = 65535
_Row = tuple[str, tuple[int, ...], int, int]  # name, shape, type number and offset, as the table has them


@dataclass(frozen=True)
class TensorEntry:
    """A row of the tensor table. `shape` is row-major (slowest first); `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Header:
    """A file's metadata, its tensors by name, and the mapped file as bytes."""

    metadata: Metadata
    tensors: dict[str, TensorEntry]
    mapped: np.ndarray
    pages: mmap.mmap

    def release(self) -> None:
        """Let the system take back what was read of the file, where it can be told to."""
        if hasattr(self.pages, "madvise"):
            self.pages.madvise(mmap.MADV_DONTNEED)

    def raw(self, entry: TensorEntry) -> np.ndarray:
        """Return a tensor's bytes, uint8, as a read-only view on the file."""
        return self.mapped[entry.offset : entry.offset + entry.size_bytes]


def read_header(path: Path) -> Header:
    """Map the file and read all before its tensor data. Raises `CheckpointError`."""
    try:
        with path.open("rb") as stream:
            pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise CheckpointError(f"{path} cannot be mapped: {error}.") from error
    mapped = np.frombuffer(pages, np.uint8)
    cursor = _Cursor(path, mapped.data)
    num_tensors, num_keys = _preamble(cursor)
    metadata = Metadata(path, _read_pairs(cursor, num_keys))
    alignment = metadata.read("general.alignment", int, 32)
    if alignment % 8 or alignment & (alignment - 1) or alignment == 0:
        raise metadata.refusal("general.alignment", f"is {alignment}, not a power of two that 8 divides")
    rows = [_read_row(cursor) for _ in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {row[0]: _entry(path, row, data_start, alignment, mapped.size) for row in rows}
    _check_layout(path, rows, tensors)
    return Header(metadata, tensors, mapped, pages)


class _Cursor:
    """A position in the file; each read moves it and refuses to leave the file."""

    def __init__(self, path: Path, buffer: memoryview) -> None:
        self.path = path
        self.buffer = buffer
        self.position = 0

    def number(self, layout: struct.Struct, what: str) -> int:
        return int(layout.unpack(self.take(layout.size, what))[0])

    def take(self, size: int, what: str) -> memoryview:
        end = self.position + size
        if end > len(self.buffer):
            raise CheckpointError(
                f"{self.path} is cut off: {what} would end at byte {end}, but the file has {len(self.buffer)}."
            )
        part = self.buffer[self.position : end]
        self.position = end
        return part

    def text(self, what: str, limit: int | None = None) -> str:
        size = self.number(_U64, f"the length of {what}")
        if limit is not None and not 0 < size <= limit:
            raise CheckpointError(f"{self.path}: {what} is {size} bytes long; allowed are 1 to {limit}.")
        try:
            return str(self.take(size, what), "utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: {what} is not valid UTF-8: {error}.") from error

    def strings(self, count: int, what: str) -> StringArray:
        start = position = self.position
        unpack, buffer = _U64.unpack_from, self.buffer
        try:
            for _ in range(count):  # nearly all of the time spent on opening: 0.1 us a string
                position += 8 + unpack(buffer, position)[0]
        except (struct.error, OverflowError):
            position = len(buffer) + 1
        return StringArray(self.take(position - start, what), count)


def _preamble(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; return the numbers of tensors and keys."""
    magic = bytes(cursor.take(4, "the magic number"))
    if magic != MAGIC:
        raise CheckpointError(f"{cursor.path} is not a GGUF file: it starts with {magic!r}, not {MAGIC!r}.")
    version = cursor.number(_U32, "the version")
    if version & 0xFFFF == 0 and version:
        raise CheckpointError(f"{cursor.path} is a big-endian GGUF file; only little-endian ones can be read.")
    if version not in (2, 3):
        raise CheckpointError(f"{cursor.path} is GGUF version {version}; versions 2 and 3 can be read.")
    num_tensors, num_keys = cursor.number(_U64, "the tensor count"), cursor.number(_U64, "the key count")
    left = len(cursor.buffer) - cursor.position
    # The least a pair takes is 14 bytes, a row of the tensor table 33.
    if num_keys * 14 + num_tensors * 33 > left:
        raise CheckpointError(
            f"{cursor.path} claims {num_tensors} tensors and {num_keys} keys, more than its {left} bytes can hold."
        )
    return num_tensors, num_keys


def _read_pairs(cursor: _Cursor, count: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for index in range(count):
        key = cursor.text(f"the name of key {index}", _MAX_NAME_BYTES)
        if key in values:
            raise CheckpointError(f"Key {key!r} appears twice in {cursor.path}.")
        values[key] = _read_value(cursor, key, cursor.number(_U32, f"the type of key {key!r}"))
    return values


def _read_value(cursor: _Cursor, key: str, kind: int) -> Any:
    what = f"key {key!r}"
    if kind == _STRING:
        return cursor.text(what)
    if kind == _ARRAY:
        return _read_array(cursor, what)
    if kind not in _DTYPES:
        raise CheckpointError(f"{cursor.path}: {what} has the unknown value type {kind}.")
    value = np.frombuffer(cursor.take(_DTYPES[kind].itemsize, what), _DTYPES[kind])[0]
    # The shortest decimal that means this float32 is the number its writer had: 1e-05, not 9.999999747378752e-06.
    return float(str(value)) if kind == _FLOAT32 else value.item()


def _read_array(cursor: _Cursor, what: str) -> StringArray | np.ndarray:
    kind = cursor.number(_U32, f"the element type of {what}")
    count = cursor.number(_U64, f"the length of {what}")
    if kind == _ARRAY:
        raise CheckpointError(f"{cursor.path}: {what} is an array of arrays, which is not supported.")
    if kind != _STRING and kind not in _DTYPES:
        raise CheckpointError(f"{cursor.path}: {what} has the unknown element type {kind}.")
    size = 8 if kind == _STRING else _DTYPES[kind].itemsize
    if count * size > len(cursor.buffer) - cursor.position:
        raise CheckpointError(f"{cursor.path} is cut off: {what} claims {count} elements, more than the file holds.")
    if kind == _STRING:
        return cursor.strings(count, what)
    return np.frombuffer(cursor.take(count * size, what), _DTYPES[kind])


def _read_row(cursor: _Cursor) -> _Row:
    name = cursor.text("a tensor's name", _MAX_NAME_BYTES)
    what = f"tensor {name!r}"
    dimensions = cursor.number(_U32, f"the dimension count of {what}")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise CheckpointError(f"{cursor.path}: {what} has {dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are allowed.")
    shape = tuple(cursor.number(_U64, f"the shape of {what}") for _ in range(dimensions))[::-1]
    return name, shape, cursor.number(_U32, f"the type of {what}"), cursor.number(_U64, f"the offset of {what}")


def _entry(path: Path, row: _Row, start: int, alignment: int, size: int) -> TensorEntry:
    name, shape, number, offset = row
    what = f"Tensor {name!r} of {path}"
    kind = ggml_type(number)
    if kind is None:
        known = ", ".join(f"{known.number} {known.name}" for known in KNOWN.values())
        raise CheckpointError(f"{what} has the unknown type {number}. Known: {known}.")
    if 0 in shape:
        raise CheckpointError(f"{what} has a zero dimension: {list(shape)}.")
    if shape[-1] % kind.block:
        raise CheckpointError(f"{what} has rows of {shape[-1]}, no multiple of {kind.name}'s block of {kind.block}.")
    size_bytes = math.prod(shape) // kind.block * kind.size
    if offset % alignment:
        raise CheckpointError(f"{what} starts at offset {offset}, which is not a multiple of {alignment}.")
    if start + offset + size_bytes > size:
        raise CheckpointError(
            f"{what}, {kind.name} {list(shape)}, would end at byte {start + offset + size_bytes}, "
            f"but the file has {size}: cut off, or damaged."
        )
    return TensorEntry(name, shape, kind, start + offset, size_bytes)


def _check_layout(path: Path, rows: list[_Row], tensors: dict[str, TensorEntry]) -> None:
    """Refuse names given twice and tensors that share bytes."""
    if len(rows) != len(tensors):
        twice = Counter(row[0] for row in rows).most_common(1)[0][0]
        raise CheckpointError(f"Tensor {twice!r} appears twice in {path}.")
    previous = None
    for entry in sorted(tensors.values(), key=lambda entry: entry.offset):
        if previous is not None and previous.offset + previous.size_bytes > entry.offset:
            raise CheckpointError(f"Tensors {previous.name!r} and {entry.name!r} of {path} overlap.")
        previous = entry
