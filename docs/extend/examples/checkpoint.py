"""Reads a folder with config.json, tokenizer.json and `model.npz`, numpy's own archive."""

import json

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import Checkpoint, TensorInfo, TokenizerData
from modulm.interfaces.support import Accepted, Rejected


class NumpyCheckpoint(Checkpoint):
    """Chosen by itself where `matches` accepts, or by `load_format="NAME"`."""

    format = "npz"

    def __init__(self, path):
        self.path, self.arrays = path, np.load(path / "model.npz")

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
            raise CheckpointError(f"Tensor {name!r} is missing in {self.path}. Write model.npz anew, with all tensors.")
        return self.arrays[name]
