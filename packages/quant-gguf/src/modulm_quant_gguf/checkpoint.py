"""The `gguf` checkpoint: one file whose metadata give configuration and tokenizer, and whose tensors are mapped.

Puts the parts together: `header.py` reads, `names.py` renames, `config.py` and `tokenizer.py` translate metadata, and
`scheme.py` makes weights of `rows`. Knows no kernels and no devices.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from modulm.errors import CheckpointError, did_you_mean
from modulm.interfaces.checkpoint import Checkpoint, TensorInfo, TokenizerData, array_dtype
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_quant_gguf.config import generation_config, model_config
from modulm_quant_gguf.header import MAGIC, Header, read_header
from modulm_quant_gguf.names import Source, sources
from modulm_quant_gguf.tokenizer import eos_ids, tokenizer_data
from modulm_quant_gguf.values import float32

_DENSE = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
_VIEWS = {"F32": "<f4", "F16": "<f2", "BF16": "bfloat16"}


class GGUFCheckpoint(Checkpoint):
    """One `.gguf` file, version 2 or 3, little-endian."""

    format: ClassVar[str] = "gguf"

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        self._sources = sources(header)

    @classmethod
    def matches(cls, path: Path) -> Support:
        """Accept a file that starts with GGUF's magic number."""
        if not path.is_file():
            return Rejected("it is a folder, not a .gguf file")
        with path.open("rb") as stream:
            return Accepted() if stream.read(4) == MAGIC else Rejected("the file does not start with 'GGUF'")

    @classmethod
    def open(cls, path: Path) -> "GGUFCheckpoint":
        """Read and check metadata and tensor table: 0.02 s for a vocabulary of 50,000."""
        header = read_header(path)
        parts = header.metadata.read("split.count", int, 1)
        if parts > 1:
            raise header.metadata.refusal(
                "split.count", f"is {parts}: the model is split. Join its files: llama-gguf-split --merge"
            )
        return cls(path, header)

    def config(self) -> dict[str, Any]:
        """Return config.json's keys. Of tensors it reads only the few factors of a scaled rotary embedding."""
        return model_config(self.header)

    def generation_config(self) -> dict[str, Any]:
        """Return the ids of tokens that begin, end and pad; `eos_token_id` lists all that end a turn."""
        return generation_config(self.header.metadata)

    def tokenizer(self) -> TokenizerData:
        """Return tokenizer, special tokens and chat template, made anew. Raises `CheckpointError` naming the key."""
        data = tokenizer_data(self.header.metadata)
        self.release()
        return data

    def tokenizer_eos_ids(self) -> list[int]:
        """Return what the file says. Raises `CheckpointError` where tokens, types, merges or scores are missing."""
        return eos_ids(self.header.metadata)

    def tensor_names(self) -> Iterable[str]:
        """Return the names of all tensors; one that transformers does not have keeps GGUF's name."""
        return self._sources.keys()

    def source(self, name: str) -> Source:
        """Return where a tensor comes from. Raises `CheckpointError` with the nearest name when there is none."""
        try:
            return self._sources[name]
        except KeyError:
            hint = did_you_mean(name, self._sources)
            raise CheckpointError(f"Tensor {name!r} is missing in {self.path}.{hint}") from None

    def info(self, name: str) -> TensorInfo:
        """Return shape and type ("float32", "q4_1", ...) of a tensor."""
        source = self.source(name)
        kind = source.entry.type.name
        size = source.entry.size_bytes // (1 if source.expert is None else source.entry.shape[0])
        return TensorInfo(shape=source.shape, dtype=_DENSE.get(kind, kind.lower()), size_bytes=size)

    def rows(self, name: str) -> np.ndarray:
        """Return a tensor's bytes, uint8 [rows, bytes per row], in transformers' order of rows.

        A view on the file, except where rows had to be moved. A vector is one row. Raises `CheckpointError` naming a
        tensor that has its scale in another, which nothing here applies.
        """
        source = self.source(name)
        scale = source.entry.name.removesuffix("weight") + "scale"
        if scale in self.header.tensors and scale != source.entry.name:
            raise CheckpointError(
                f"Tensor {source.entry.name!r} of {self.path} has a separate scale, {scale!r}, which is not supported."
            )
        raw = self.header.raw(source.entry)
        if source.expert is not None:
            raw = raw.reshape(source.entry.shape[0], -1)[source.expert]
        order = source.row_order
        if order is not None:
            raw = raw.reshape(len(order), -1)[order]
        kind = source.entry.type
        return raw.reshape(-1, source.shape[-1] // kind.block * kind.size)

    def release(self) -> None:
        """See base class."""
        self.header.release()

    def tensor(self, name: str) -> np.ndarray:
        """Return a tensor, as float32 when stored quantized, else a view on the file where it can be."""
        source, rows = self.source(name), self.rows(name)
        kind = source.entry.type
        if not source.offset and kind.name in _VIEWS:
            return rows.view(array_dtype(_VIEWS[kind.name])).reshape(source.shape)
        values = float32(rows, kind, f"Tensor {source.entry.name!r} of {self.path}")
        return (values - np.float32(source.offset) if source.offset else values).reshape(source.shape)
