"""Safetensors checkpoints: a Hugging Face folder with one file or with shards and an index. Tensors are memory-mapped.

Reads headers itself (an 8-byte length, then JSON), so that names and shapes cost no torch; data go through the
safetensors library. Format: the README of huggingface/safetensors.
"""

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from modulm.checkpoints.folder import read_json, read_optional_json, read_tokenizer
from modulm.errors import CheckpointError, did_you_mean
from modulm.interfaces.checkpoint import Checkpoint, TensorInfo, TokenizerData
from modulm.interfaces.support import Accepted, Rejected, Support

if TYPE_CHECKING:
    import torch

_MAX_HEADER_BYTES = 100_000_000
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}
_DTYPES |= {
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3",
    "F8_E5M2": "float8_e5m2",
}
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class SafetensorsCheckpoint(Checkpoint):
    """A folder with config.json and `model.safetensors`, or shards listed in `model.safetensors.index.json`."""

    format: ClassVar[str] = "safetensors"

    def __init__(self, path: Path, files: dict[str, Path], infos: dict[str, TensorInfo]) -> None:
        self.path = path
        self._files = files
        self._infos = infos
        self._open: dict[Path, Any] = {}

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
        files: dict[str, Path] = {}
        infos: dict[str, TensorInfo] = {}
        for file in _tensor_files(path):
            for name, info in _read_header(file).items():
                if name in infos:
                    raise CheckpointError(
                        f"Tensor {name!r} is in both {files[name].name!r} and {file.name!r} of {path}."
                    )
                files[name], infos[name] = file, info
        _check_index(path, files)
        return cls(path, files, infos)

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
        return self._infos.keys()

    def info(self, name: str) -> TensorInfo:
        """Return shape and type of a tensor."""
        try:
            return self._infos[name]
        except KeyError:
            hint = did_you_mean(name, self._infos)
            raise CheckpointError(f"Tensor {name!r} is missing in {self.path}.{hint}") from None

    def tensor(self, name: str) -> "torch.Tensor":
        """Return a tensor as it is stored, as a view on the mapped file."""
        self.info(name)
        file = self._files[name]
        if file not in self._open:
            from safetensors import safe_open

            try:
                self._open[file] = safe_open(file, framework="pt")
            except Exception as error:  # the library raises its own type, and OSError
                raise CheckpointError(f"{file} cannot be opened: {error}.") from error
        tensor: torch.Tensor = self._open[file].get_tensor(name)
        return tensor

    def close(self) -> None:
        """Drop the open files."""
        self._open.clear()


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


def _check_index(path: Path, files: dict[str, Path]) -> None:
    if not (path / _INDEX).exists():
        return
    for name, shard in read_json(path / _INDEX)["weight_map"].items():
        if name not in files:
            raise CheckpointError(f"Tensor {name!r}, listed in {_INDEX}, is missing in its shard {shard!r} in {path}.")


def _read_header(file: Path) -> dict[str, TensorInfo]:
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
        return {name: _info(file, name, entry, size - 8 - length) for name, entry in entries.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file} has a damaged header: {error}.") from error


def _info(file: Path, name: str, entry: Any, data_bytes: int) -> TensorInfo:
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"Tensor {name!r} of {file} lacks dtype, shape or data_offsets.") from error
    if dtype not in _DTYPES:
        raise CheckpointError(f"Tensor {name!r} of {file} has type {dtype!r}. Known: {', '.join(_DTYPES)}.")
    if not 0 <= start <= stop <= data_bytes:
        raise CheckpointError(
            f"Tensor {name!r} of {file} lies at bytes {start} to {stop}, but the file holds {data_bytes}: cut off?"
        )
    return TensorInfo(shape=shape, dtype=_DTYPES[dtype], size_bytes=stop - start)
