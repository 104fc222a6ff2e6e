"""Stand-ins for what surrounds a plugin: a checkpoint in memory, payloads of statistics, an engine's door, a worker."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from modulm.errors import CheckpointError, did_you_mean
from modulm.interfaces.checkpoint import Checkpoint, TensorInfo, TokenizerData
from modulm.interfaces.support import Rejected, Support

if TYPE_CHECKING:
    import numpy as np


class MemoryCheckpoint(Checkpoint):
    """A checkpoint that is nowhere on disk: config.json's contents and tensors, as given.

    Tensors are handed out read-only, as from a mapped file.
    """

    format: ClassVar[str] = "memory"

    def __init__(self, config: Mapping[str, Any], tensors: "Mapping[str, np.ndarray]") -> None:
        self.path = Path("in-memory")
        self._config = dict(config)
        self._tensors = dict(tensors)

    @classmethod
    def matches(cls, path: Path) -> Support:
        """Reject every path."""
        return Rejected("it is nowhere on disk")

    @classmethod
    def open(cls, path: Path) -> "MemoryCheckpoint":
        """Raise `CheckpointError`: there is nothing to open."""
        raise CheckpointError(f"{str(path)!r} cannot be opened: this format is nowhere on disk.")

    def config(self) -> dict[str, Any]:
        """Return what it was made with."""
        return dict(self._config)

    def generation_config(self) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def tokenizer(self) -> TokenizerData:
        """Raise `CheckpointError`."""
        raise CheckpointError("A checkpoint in memory has no tokenizer.")

    def tensor_names(self) -> Iterable[str]:
        """Return the names it was made with."""
        return self._tensors.keys()

    def info(self, name: str) -> TensorInfo:
        """See base class."""
        array = self._array(name)
        return TensorInfo(shape=array.shape, dtype=array.dtype.name, size_bytes=array.nbytes)

    def tensor(self, name: str) -> "np.ndarray":
        """See base class."""
        view = self._array(name).view()
        view.flags.writeable = False
        return view

    def _array(self, name: str) -> "np.ndarray":
        if name not in self._tensors:
            raise CheckpointError(f"Tensor {name!r} is missing in memory.{did_you_mean(name, self._tensors)}")
        return self._tensors[name]
