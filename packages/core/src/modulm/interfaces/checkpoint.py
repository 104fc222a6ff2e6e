"""Checkpoint file formats (family `modulm.checkpoints`): what is on disk, under transformers' names.

Everything runs in the engine's process, from one thread: `resolve.py` asks `matches`, opens one reader, and asks for
configuration and tokenizer, which it sends to the front end; `worker/load.py` then reads each tensor once or twice.
A reader never imports torch; opening, config and tokenizer never read tensor data. Every name is the one transformers
uses ("model.layers.0.self_attn.q_proj.weight"), whatever the file calls it.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from modulm.errors import CheckpointError
from modulm.interfaces.support import Support

if TYPE_CHECKING:
    import numpy as np


SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Keys of tokenizer_config.json."""


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """Shape (as transformers has it, row-major) and stored type ("bfloat16", "float32", "q4_1", ...) of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class TokenizerData:
    """All that is needed to build a tokenizer, without files.

    Attributes:
        tokenizer_json: The serialised `tokenizers.Tokenizer` (contents of a tokenizer.json).
        config: Contents of tokenizer_config.json (bos_token, eos_token, add_bos_token ...), special tokens as strings.
        chat_template: Jinja source, or several by name, or None.
    """

    tokenizer_json: str
    config: dict[str, Any] = field(default_factory=dict)
    chat_template: str | dict[str, str] | None = None


class _Outline(msgspec.Struct):
    """What is read of a tokenizer.json; the rest is only looked through."""

    added_tokens: list[dict[str, Any]] = []


class Checkpoint(ABC):
    """One opened checkpoint. All methods raise `CheckpointError` naming the file and the tensor or key."""

    format: ClassVar[str]
    path: Path

    @classmethod
    @abstractmethod
    def matches(cls, path: Path) -> Support:
        """Say whether `path` (a file or folder that exists) is of this format; cheap: names and magic bytes only."""

    @classmethod
    @abstractmethod
    def open(cls, path: Path) -> "Checkpoint":
        """Open and check the header. Tensor data is mapped, not read."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the model's configuration with config.json's keys, `architectures` included."""

    @abstractmethod
    def generation_config(self) -> dict[str, Any]:
        """Return generation_config.json's contents, or an empty dict."""

    @abstractmethod
    def tokenizer(self) -> TokenizerData:
        """Return the tokenizer's data. Raises `CheckpointError` naming what is missing."""

    def tokenizer_eos_ids(self) -> list[int] | None:
        """Return the id of the tokenizer's `eos_token`, one or none; None where only a tokenizer that was built tells.

        With this an engine may start, and build the tokenizer when text first comes. So it raises `CheckpointError` for
        whatever is cheaply found to be missing or damaged. A format that can tell without all of `tokenizer` should.
        """
        data = self.tokenizer()
        eos = data.config.get("eos_token")
        if not isinstance(eos, str):
            return []
        try:
            added = msgspec.json.decode(data.tokenizer_json, type=_Outline).added_tokens
            return next(([int(token["id"])] for token in added if token.get("content") == eos), None)
        except (ValueError, TypeError, KeyError):
            return None  # the library says better what is wrong

    @abstractmethod
    def tensor_names(self) -> Iterable[str]:
        """Return the names of all tensors."""

    @abstractmethod
    def info(self, name: str) -> TensorInfo:
        """Return shape and type of a tensor; `CheckpointError` with near names when there is none."""

    @abstractmethod
    def tensor(self, name: str) -> "np.ndarray":
        """Return a tensor in the dtype it is stored in (bfloat16 and 8-bit floats: those of `ml_dtypes`).

        float32 when stored in blocks. A view on the mapped file where it can be, aligned; not to be written to.
        """

    def release(self) -> None:
        """Give back the memory that reading took; views handed out before stay valid and read the file again."""

    def close(self) -> None:
        """Release the file; views handed out before stay valid."""


def array_dtype(name: str) -> "np.dtype":
    """Return numpy's dtype of this name, or else that of `ml_dtypes`, which is imported for no other."""
    import numpy as np

    try:
        found = np.dtype(name)
    except TypeError:
        import ml_dtypes

        found = np.dtype(getattr(ml_dtypes, name))
    return found


class LayerTensors:
    """Names of a checkpoint's tensors by layer, for what stores a layer in several."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._where = checkpoint.path
        self._sorted = sorted(checkpoint.tensor_names())  # "/" follows "." in it

    def of(self, module: str) -> list[str]:
        """Return what follows "<module>." in the names of its tensors: "bias", "weight", "weight.absmax"."""
        first, last = bisect_left(self._sorted, f"{module}."), bisect_left(self._sorted, f"{module}/")
        return [name[len(module) + 1 :] for name in self._sorted[first:last]]

    def only(self, module: str, known: Collection[str]) -> None:
        """Raise `CheckpointError` naming a tensor of the layer that is none of `known`: it would be lost silently."""
        for name in self.of(module):
            if name not in known:
                raise CheckpointError(
                    f"Tensor '{module}.{name}' in {self._where} has no place in its layer, which may have: "
                    f"{', '.join(sorted(known))}. Its answers would be wrong; check what made the checkpoint."
                )


def expect(
    checkpoint: Checkpoint, name: str, shape: Sequence[int | None], dtypes: Sequence[str] = (), *, who: str
) -> TensorInfo:
    """Return shape and type of a tensor that must be there; reads no data.

    Args:
        checkpoint: Where it is.
        name: The tensor's.
        shape: What it must be; None stands for any size.
        dtypes: What it may be stored as; empty: anything.
        who: What needs it so, for messages: "a GPTQ layer of 64 x 128 (bits=4, group_size=32)".

    Raises:
        CheckpointError: It is missing, or another. The message has file, tensor, and `who`.
    """
    try:
        info = checkpoint.info(name)
    except CheckpointError as error:
        raise CheckpointError(f"{error} It is what {who} needs: check that the checkpoint is complete.") from error
    same = len(info.shape) == len(shape) and all(w in (None, n) for w, n in zip(shape, info.shape, strict=True))
    if not same or (dtypes and info.dtype not in dtypes):
        found, wanted = (f"is {info.dtype}", f"{' or '.join(dtypes)} ") if dtypes else ("has shape", "")
        raise CheckpointError(
            f"Tensor {name!r} in {checkpoint.path} {found} {list(info.shape)}, but {who} needs "
            f"{wanted}{list(shape)}. Check that config and weights belong together."
        )
    return info


def finite(checkpoint: Checkpoint, name: str) -> "np.ndarray":
    """Return a tensor of floats (scales) whose numbers are all finite; `CheckpointError` says which are not."""
    import numpy as np

    array = checkpoint.tensor(name)
    bad = ~np.isfinite(array)
    if bad.any():
        first = [int(index) for index in np.argwhere(bad)[0]] if array.ndim else []
        raise CheckpointError(
            f"Tensor {name!r} in {checkpoint.path} has {int(bad.sum())} numbers that are NaN or infinite, the first at "
            f"{first}: all of its layer's results would be. The file is damaged, or was badly quantized: fetch or make "
            "it again."
        )
    return array
