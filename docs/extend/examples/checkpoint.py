"""Reads a folder with config.json, tokenizer.json and `model.npz`, numpy's own archive."""

import json
import zipfile
import zlib

import numpy as np

from modulm.errors import CheckpointError, did_you_mean
from modulm.interfaces.checkpoint import Checkpoint, TensorInfo, TokenizerData
from modulm.interfaces.support import Accepted, Rejected

DAMAGED = (EOFError, NotImplementedError, OSError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)
"""What numpy and zipfile raise for files that were cut off or changed."""


class NumpyCheckpoint(Checkpoint):
    """Chosen by itself where `matches` accepts, or by `load_format="NAME"`."""

    format = "npz"

    def __init__(self, path):
        self.path, self.file = path, path / "model.npz"
        try:
            self.arrays = np.load(self.file)
        except DAMAGED as error:
            raise CheckpointError(f"{self.file} cannot be read: {error}. Get it anew.") from error

    @classmethod
    def matches(cls, path):
        return Accepted() if (path / "model.npz").is_file() else Rejected("there is no model.npz in it")

    @classmethod
    def open(cls, path):
        return cls(path)

    def config(self):
        return json.loads((self.path / "config.json").read_text())

    def generation_config(self):
        return {}

    def tokenizer(self):
        return TokenizerData(tokenizer_json=(self.path / "tokenizer.json").read_text())

    def tensor_names(self):
        return self.arrays.files

    def info(self, name):
        array = self.tensor(name)
        return TensorInfo(shape=array.shape, dtype=array.dtype.name, size_bytes=array.nbytes)

    def tensor(self, name):
        if name not in self.arrays.files:
            raise CheckpointError(f"Tensor {name!r} is missing in {self.file}.{did_you_mean(name, self.arrays.files)}")
        try:
            return self.arrays[name]
        except DAMAGED as error:
            raise CheckpointError(f"Tensor {name!r} of {self.file} cannot be read: {error}. Get it anew.") from error
