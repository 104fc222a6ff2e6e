"""Safetensors checkpoints: a Hugging Face folder with one file or with shards and an index. Tensors are memory-mapped.

Reads the format itself: an 8-byte length, a JSON header, then the data of all tensors without gaps. Source: the README
of huggingface/safetensors.
"""

import json
import math
import mmap
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from modulm.checkpoints.folder import read_json, read_optional_json, read_tokenizer
from modulm.errors import CheckpointError, did_you_mean
from modulm.interfaces.checkpoint import Checkpoint, TensorInfo, TokenizerData, array_dtype
from modulm.interfaces.support import Accepted, Rejected, Support

_MAX_HEADER_BYTES = 100_000_000
_DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "bfloat16"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"},
}
"""The format's types by numpy's names, or those of `ml_dtypes`."""
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class _Place(NamedTuple):
    """Where a tensor lies: bytes [start, stop) of a file."""

    file: Path
    start: int
    stop: int
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


class SafetensorsCheckpoint(Checkpoint):
    """A folder with config.json and `model.safetensors`, or shards listed in `model.safetensors.index.json`."""

    format: ClassVar[str] = "safetensors"

    def __init__(self, path: Path, places: dict[str, _Place]) -> None:
        self.path = path
        self._places = places
        self._mapped: dict[Path, mmap.mmap] = {}

    @classmethod
    def matches(cls, path: Path) -> Support:
        """Accept a folder that holds config.json and safetensors files."""
        if not path.is_dir():
            return Rejected("it is a file, not a folder with config.json")
        if not (path / "config.json").exists():
            return Rejected("the folder has no config.json")
        if (path / _SINGLE).exists() or (path / _INDEX).exists() or any(path.glob("*.safetensors")):
            return Accepted()
        return Rejected("the folder has no .safetensors file")

    @classmethod
    def open(cls, path: Path) -> "SafetensorsCheckpoint":
        """Read and check the headers of all files."""
        places: dict[str, _Place] = {}
        for file in _tensor_files(path):
            for name, place in _read_header(file).items():
                if name in places:
                    raise CheckpointError(
                        f"Tensor {name!r} is in both {places[name].file.name!r} and {file.name!r} of {path}."
                    )
                places[name] = place
        _check_index(path, places)
        return cls(path, places)

    def config(self) -> dict[str, Any]:
        """Return config.json."""
        return read_json(self.path / "config.json")

    def generation_config(self) -> dict[str, Any]:
        """Return generation_config.json, or an empty dict."""
        return read_optional_json(self.path / "generation_config.json")

    def tokenizer(self) -> TokenizerData:
        """Return the folder's tokenizer and chat template."""
        return read_tokenizer(self.path)

    def tensor_names(self) -> Iterable[str]:
        """Return the names of all tensors, file by file."""
        return self._places.keys()

    def info(self, name: str) -> TensorInfo:
        """Return shape and type of a tensor."""
        place = self._place(name)
        return TensorInfo(shape=place.shape, dtype=place.dtype.name, size_bytes=place.size_bytes)

    def tensor(self, name: str) -> np.ndarray:
        """Return a tensor as it is stored, as a view on the mapped file; copied where that is not aligned."""
        place = self._place(name)
        if place.file not in self._mapped:
            try:
                with place.file.open("rb") as stream:
                    self._mapped[place.file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:  # ValueError: it is empty by now
                raise CheckpointError(f"{place.file} cannot be opened: {error}.") from error
        raw = np.frombuffer(self._mapped[place.file], np.uint8)[place.start : place.stop]
        try:
            return np.require(raw.view(place.dtype).reshape(place.shape), requirements="A")
        except (OverflowError, ValueError) as error:  # no array has such a shape, or the file is shorter by now
            raise CheckpointError(f"Tensor {name!r} of {place.file} cannot be read: {error}.") from error

    def release(self) -> None:
        """See base class."""
        for mapped in self._mapped.values():
            if hasattr(mapped, "madvise"):
                mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Let go of the mapped files."""
        self._mapped.clear()

    def _place(self, name: str) -> _Place:
        try:
            return self._places[name]
        except KeyError:
            hint = did_you_mean(name, self._places)
            raise CheckpointError(f"Tensor {name!r} is missing in {self.path}.{hint}") from None


def _tensor_files(path: Path) -> list[Path]:
    if (path / _INDEX).exists():
        shards = read_json(path / _INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise CheckpointError(f"{path / _INDEX} has no 'weight_map'.")
        names = sorted({str(shard) for shard in shards.values()})
        missing = [name for name in names if Path(name).name != name or not (path / name).exists()]
        if missing:
            raise CheckpointError(f"Shard {missing[0]!r}, listed in {_INDEX}, is missing in {path}.")
        return [path / name for name in names]
    return [path / _SINGLE] if (path / _SINGLE).exists() else sorted(path.glob("*.safetensors"))


def _check_index(path: Path, places: dict[str, _Place]) -> None:
    if not (path / _INDEX).exists():
        return
    for name, shard in read_json(path / _INDEX)["weight_map"].items():
        if name not in places:
            raise CheckpointError(f"Tensor {name!r}, listed in {_INDEX}, is missing in its shard {shard!r} in {path}.")


def _read_header(file: Path) -> dict[str, _Place]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
            raise CheckpointError(f"{file} is not a safetensors file, or is cut off: its header length is {length}.")
        raw = stream.read(length)
    try:
        entries = json.loads(raw)
        entries.pop("__metadata__", None)
        places = {name: _place(file, name, entry, 8 + length, size) for name, entry in entries.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file} has a damaged header: {error}.") from error
    _check_layout(file, places, 8 + length, size)
    return places


def _place(file: Path, name: str, entry: Any, data_start: int, file_bytes: int) -> _Place:
    what = f"Tensor {name!r} of {file}"
    try:
        kind, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{what} lacks dtype, shape or data_offsets.") from error
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise CheckpointError(f"{what} has type {kind!r}. Known: {', '.join(_DTYPES)}.")
    if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
        raise CheckpointError(f"{what} has shape {list(shape)} and data_offsets {[start, stop]}: not whole numbers.")
    if not start <= stop <= file_bytes - data_start:
        raise CheckpointError(
            f"{what} lies at bytes {start} to {stop}, but the file holds {file_bytes - data_start}: cut off?"
        )
    dtype = array_dtype(_DTYPES[kind])
    if math.prod(shape) * dtype.itemsize != stop - start:
        raise CheckpointError(f"{what} has {stop - start} bytes, which are not those of {list(shape)} {kind} numbers.")
    return _Place(file, data_start + start, data_start + stop, dtype, shape)


def _check_layout(file: Path, places: dict[str, _Place], data_start: int, file_bytes: int) -> None:
    """Refuse gaps and overlaps, as the format does: a file that has them is not what its header says."""
    end = data_start
    for name, place in sorted(places.items(), key=lambda item: item[1][1:3]):
        if place.start != end:
            raise CheckpointError(f"Tensor {name!r} of {file} does not lie where the one before it ends.")
        end = place.stop
    if end != file_bytes:
        raise CheckpointError(f"{file} has {file_bytes - end} bytes after its last tensor. Fetch it again.")
