"""Recorded models on disk: with one, a process runs a checkpoint without importing torch or building the model.

A file holds what the model's class and torch would otherwise be needed for: the graph, how its weights are packed, and
its few plain tensors. Weights stay in the checkpoint. Files are found by a digest of all that a recording depends on,
the numbers of those plain tensors too: fine-tunes of a model differ in nothing else. One that is damaged or from
elsewhere counts as absent and is written again. Knows no room.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from modulm.config import cache_folder
from modulm.digests import hashed
from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import Checkpoint
from modulm.interfaces.program import Graph
from modulm.interfaces.recipe import Recipe
from modulm.log import logger

_log = logger("programs")
_MAGIC = b"modulm program 1\n"
_DIGEST_BYTES = 32


class SavedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded model.

    Attributes:
        config_defaults: What the model's class fills into a configuration that leaves it out.
        graph: As recorded, before attention layers are given backends and cache dtypes.
        recipes: How each of the graph's weights is packed.
        tensors: The graph's plain tensors, float32 in the machine's byte order; shapes are the graph's.
    """

    config_defaults: dict[str, Any]
    graph: Graph
    recipes: dict[str, Recipe]
    tensors: dict[str, bytes]


def folder() -> Path:
    """Return where recordings are kept."""
    return cache_folder() / "programs"


def key_of(**parts: Any) -> str:
    """Return the digest of what a recording depends on: plain data, in any order of names."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashed(_MAGIC + text.encode()).hexdigest()[:40]


def source_state(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return name, size and time of change of source files: for code that changes without its version."""
    states = [(file.name, file.stat()) for file in sorted(files)]
    return [(name, state.st_size, state.st_mtime_ns) for name, state in states]


def is_kept(name: str, shape: tuple[int, ...]) -> bool:
    """Say whether a tensor is of those whose numbers belong to a key: norms, biases and sinks, by their names.

    A recording that keeps any other tensor must not be saved.
    """
    return name.endswith("bias") or (len(shape) == 1 and name.endswith((".weight", ".sinks")))


def numbers_of(checkpoint: Checkpoint) -> str:
    """Return the digest of all tensors that `is_kept`; of one that cannot be read, of the reason."""
    digest = hashed()
    for name in sorted(checkpoint.tensor_names()):
        if is_kept(name, checkpoint.info(name).shape):
            try:
                numbers = checkpoint.tensor(name).tobytes()
            except CheckpointError as error:  # the model may do without it, and says so if not
                numbers = str(error).encode()
            digest.update(name.encode() + b"\0" + numbers)
    return digest.hexdigest()


def load(key: str) -> SavedModel | None:
    """Return what was saved under `key`; None when nothing was, or nothing that can be used."""
    path = _path(key)
    try:
        content = path.read_bytes()
    except OSError:
        return None
    body = content[len(_MAGIC) + _DIGEST_BYTES :]
    if content[: len(_MAGIC) + _DIGEST_BYTES] != _MAGIC + hashed(key.encode() + body).digest():
        _log.warning("The recorded program %s is damaged or not ours; it is recorded anew.", path)
        return None
    try:
        return msgspec.msgpack.decode(body, type=SavedModel)
    except msgspec.MsgspecError as error:
        _log.warning("The recorded program %s cannot be read (%s); it is recorded anew.", path, error)
        return None


def save(key: str, model: SavedModel) -> None:
    """Write a recording for later processes; where that fails, a warning says why and nothing is lost."""
    path = _path(key)
    body = msgspec.msgpack.encode(model)
    content = _MAGIC + hashed(key.encode() + body).digest() + body
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            os.replace(name, path)  # whole or not at all, also beside other processes
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        _log.warning("The recorded program is not kept for the next start: %s.", error)


def _path(key: str) -> Path:
    return folder() / f"{key}.program"
