"""Readers of safetensors that are wrong in one way each, made of core's."""

import tempfile
from pathlib import Path

import numpy as np
from contract import Contract

from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.errors import CheckpointError
from modulm.interfaces.support import Accepted, Rejected
from modulm_testkit.checkpoint import CheckpointConformance
from modulm_testkit.checkpoints import random_llama, write_folder, write_tokenizer
from modulm_testkit.samples import CheckpointSample

_FOLDER = tempfile.TemporaryDirectory(prefix="modulm-mutants-")
CONFIG, TENSORS = random_llama()
TENSORS = {name: TENSORS[name] for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")}
TENSORS["model.odd.weight"] = TENSORS["model.norm.weight"][:5].astype(np.float16)
PATH = write_folder(Path(_FOLDER.name), CONFIG, TENSORS)
write_tokenizer(PATH)


def sample(reader):
    return CheckpointSample(reader=reader, path=PATH, config={"hidden_size": 32}, tensors=TENSORS)


checkpoint = Contract("checkpoint", CheckpointConformance, "checkpoint", SafetensorsCheckpoint, wrap=sample)
mutant = checkpoint.mutant


@mutant("test_matches_its_own")
class WantsAnIndex(SafetensorsCheckpoint):
    """It accepts folders with an index only."""

    @classmethod
    def matches(cls, path):
        return super().matches(path) if (path / "model.safetensors.index.json").exists() else Rejected("no index")


@mutant("test_rejects_others")
class ReadsAMagicNumber(SafetensorsCheckpoint):
    """`matches` raises for an empty file."""

    @classmethod
    def matches(cls, path):
        if path.is_file():
            return Rejected(f"it starts with {path.read_bytes()[0]}")
        return super().matches(path)


@mutant("test_config_has_transformers_keys")
class NamesKeysItsOwnWay(SafetensorsCheckpoint):
    """`config` says embedding_length for hidden_size."""

    def config(self):
        config = super().config()
        config["embedding_length"] = config.pop("hidden_size", None)
        return config


@mutant("test_generation_config_is_a_dictionary")
class HasNoGenerationConfig(SafetensorsCheckpoint):
    """`generation_config` is None where there is none."""

    def generation_config(self):
        return super().generation_config() or None


@mutant("test_tokenizer_loads")
class ReturnsAPath(SafetensorsCheckpoint):
    """`tokenizer` returns the name of a file."""

    def tokenizer(self):
        super().tokenizer()
        return str(self.path / "tokenizer.json")


@mutant("test_names_are_transformers")
class SaysNamesTwice(SafetensorsCheckpoint):
    """A tensor is listed twice."""

    def tensor_names(self):
        names = list(super().tensor_names())
        return [*names, names[0]]


@mutant("test_tensors_have_their_numbers")
class RoundsNumbers(SafetensorsCheckpoint):
    """Numbers read by a fresh reader lose their low bits."""

    asked = 0

    def tensor(self, name):
        array = super().tensor(name)
        self.asked += 1
        is_first = self.asked == 1 and array.dtype == np.float32
        return (array.view(np.uint32) & 0xFFFFFF00).view(np.float32) if is_first else array

    def release(self):
        """What was handed out is right again."""

    @classmethod
    def open(cls, path):
        return super().open(path)


@mutant("test_info_says_what_is_stored")
class CountsNumbersAsBytes(SafetensorsCheckpoint):
    """`size_bytes` is the number of numbers."""

    def info(self, name):
        from dataclasses import replace

        info = super().info(name)
        return replace(info, size_bytes=int(np.prod(info.shape)))


@mutant("test_tensors_are_aligned")
class DoesNotAlign(SafetensorsCheckpoint):
    """Arrays lie where the file has them, at odd addresses."""

    def tensor(self, name):
        array = super().tensor(name)
        room = np.empty(array.nbytes + 1, np.uint8)
        room[1:] = array.reshape(-1).view(np.uint8)
        return room[1:].view(array.dtype).reshape(array.shape)


@mutant("test_names_what_is_missing")
class RaisesKeyError(SafetensorsCheckpoint):
    """A missing tensor is named, but not the nearest one."""

    def info(self, name):
        try:
            return super().info(name)
        except CheckpointError:
            raise CheckpointError(f"There is no {name!r}.") from None


@mutant("test_views_outlive_the_checkpoint")
class ClosesTwiceBadly(SafetensorsCheckpoint):
    """The second `close` raises."""

    def close(self):
        del self._mapped


@mutant("test_leaves_no_file_open")
class KeepsFilesOpen(SafetensorsCheckpoint):
    """The file stays open after `close`."""

    held = []

    @classmethod
    def open(cls, path):
        cls.held.append((path / "model.safetensors").open("rb"))
        return super().open(path)


@mutant("test_cut_files_are_refused")
class DoesNotMindTheEnd(SafetensorsCheckpoint):
    """A file cut off behind its header is read as far as it goes."""

    @classmethod
    def open(cls, path):
        try:
            return super().open(path)
        except CheckpointError as error:
            if "cut off" in str(error) and "header length" not in str(error):
                return cls(path, {})
            raise


@mutant("test_damaged_files_raise_nothing_else")
class BelievesTheHeader(SafetensorsCheckpoint):
    """A header that is no JSON raises what the library raises."""

    @classmethod
    def open(cls, path):
        try:
            return super().open(path)
        except CheckpointError as error:
            if "damaged header" in str(error):
                raise ValueError("Expecting value: line 1") from error
            raise


assert isinstance(SafetensorsCheckpoint.matches(PATH), Accepted)
