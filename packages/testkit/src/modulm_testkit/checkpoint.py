"""Conformance of checkpoint formats (`modulm.interfaces.checkpoint`): what is in a file, under transformers' names.

The author gives a file with known contents. Damaged copies of it are made here: a file from the network may be cut off
or wrong in any byte. No torch.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import Checkpoint, TensorInfo, TokenizerData
from modulm.interfaces.support import Accepted, Rejected
from modulm_testkit.leaks import leaks
from modulm_testkit.samples import CheckpointSample
from modulm_testkit.suite import Conformance, ask_for

_Folders = Callable[[], Path]
_FLOATS = ("float64", "float32", "float16", "bfloat16")


class CheckpointConformance(Conformance):
    """Give `checkpoint`: a `CheckpointSample`, the class with a file and what is in it."""

    @pytest.fixture(name="checkpoint")
    def _checkpoint(self) -> CheckpointSample:
        """Return the sample."""
        ask_for("checkpoint", "CheckpointSample(reader=MyCheckpoint, path=..., config={...}, tensors={...})")

    @pytest.fixture
    def folders(self, tmp_path_factory: pytest.TempPathFactory) -> "_Folders":
        """Makes empty folders, which are not the author's `tmp_path`."""
        return lambda: tmp_path_factory.mktemp("copy")

    def test_matches_its_own(self, checkpoint: CheckpointSample) -> None:
        """`matches` accepts a path in this format."""
        answer = checkpoint.reader.matches(checkpoint.path)
        assert isinstance(answer, Accepted), f"it says {answer!r} of its own file"

    def test_rejects_others(self, checkpoint: CheckpointSample, folders: "_Folders") -> None:
        """`matches` rejects any other file or folder that exists with a reason, and never raises.

        Every installed format is asked about every path. What breaks it: reading a magic number of an empty file, or
        of a folder.
        """
        folder = folders()
        (folder / "empty").touch()
        (folder / "text").write_text("not a model")
        (folder / "folder").mkdir()
        (folder / "folder" / "config.json").write_text("{")
        for path in (folder / "empty", folder / "text", folder / "folder", folder):
            answer = checkpoint.reader.matches(path)
            assert isinstance(answer, Rejected), f"it says {answer!r} of {path.name}"
            assert answer.reason, "it rejects without a reason"

    def test_config_has_transformers_keys(self, checkpoint: CheckpointSample) -> None:
        """`config` has the keys of config.json, `architectures` among them, and the sample's values."""
        config = opened(checkpoint).config()
        assert all(isinstance(name, str) for name in config["architectures"])
        assert {key: config.get(key) for key in checkpoint.config} == dict(checkpoint.config)

    def test_generation_config_is_a_dictionary(self, checkpoint: CheckpointSample) -> None:
        """`generation_config` is a dictionary, an empty one where the file says nothing."""
        assert isinstance(opened(checkpoint).generation_config(), dict)

    def test_tokenizer_loads(self, checkpoint: CheckpointSample) -> None:
        """`tokenizer` is what `tokenizers` reads, or `CheckpointError` says what is missing."""
        try:
            data = opened(checkpoint).tokenizer()
        except CheckpointError as error:
            pytest.skip(f"the sample has none: {error}")
        assert isinstance(data, TokenizerData)
        tokenizers = pytest.importorskip("tokenizers", reason="modulm-testkit[models] is not installed")
        assert tokenizers.Tokenizer.from_str(data.tokenizer_json).get_vocab_size() > 0

    def test_names_are_transformers(self, checkpoint: CheckpointSample) -> None:
        """`tensor_names` has every tensor once, under the name that transformers uses."""
        names = list(opened(checkpoint).tensor_names())
        assert len(names) == len(set(names))
        missing = sorted(set(checkpoint.tensors) - set(names))
        assert not missing, f"{missing[:5]} are not among {sorted(names)[:5]} ..."

    def test_tensors_have_their_numbers(self, checkpoint: CheckpointSample) -> None:
        """`tensor` returns the sample's numbers; types stored in blocks come as float32."""
        one = opened(checkpoint)
        for name, wanted in checkpoint.tensors.items():
            found = one.tensor(name)
            assert found.shape == wanted.shape, name
            np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64), err_msg=name)

    def test_info_says_what_is_stored(self, checkpoint: CheckpointSample) -> None:
        """`info` has each tensor's shape and stored type without reading it; plain floats come in that very type."""
        one = opened(checkpoint)
        for name in one.tensor_names():
            info = one.info(name)
            assert isinstance(info, TensorInfo)
            assert info.size_bytes > 0 or 0 in info.shape, name
            if info.dtype in _FLOATS:
                assert info.size_bytes == int(np.prod(info.shape)) * one.tensor(name).itemsize, name
                assert one.tensor(name).dtype.name in (info.dtype, "float32"), name
            assert one.tensor(name).shape == info.shape, name

    def test_tensors_are_aligned(self, checkpoint: CheckpointSample) -> None:
        """Arrays are aligned for their type, wherever the file puts them: native code reads them as they are."""
        one = opened(checkpoint)
        for name in one.tensor_names():
            assert one.tensor(name).flags.aligned, name

    def test_names_what_is_missing(self, checkpoint: CheckpointSample) -> None:
        """`info` and `tensor` of an unknown name raise `CheckpointError` that has the name and a near one."""
        one = opened(checkpoint)
        name = next(iter(checkpoint.tensors))
        for ask in (one.info, one.tensor):
            with pytest.raises(CheckpointError) as caught:
                ask(f"{name}s")
            assert f"{name}s" in str(caught.value), f"{caught.value} does not name what was asked for"
            assert f"'{name}'" in str(caught.value), f"{caught.value} does not offer the nearest name"

    def test_views_outlive_the_checkpoint(self, checkpoint: CheckpointSample) -> None:
        """Arrays that were handed out stay valid after `release` and after `close`, which may come twice."""
        one = opened(checkpoint)
        held = {name: one.tensor(name) for name in checkpoint.tensors}
        before = {name: array.copy() for name, array in held.items()}
        one.release()
        one.close()
        one.close()
        for name, array in held.items():
            np.testing.assert_array_equal(array.astype(np.float64), before[name].astype(np.float64), err_msg=name)

    def test_leaves_no_file_open(self, checkpoint: CheckpointSample) -> None:
        """After `close`, and without views, no descriptor of the file is left."""
        with leaks(torch=True) as found:
            one = opened(checkpoint)
            for name in checkpoint.tensors:
                one.tensor(name)
            one.close()
            del one
        assert not found, f"left behind: {'; '.join(found)}"

    def test_cut_files_are_refused(self, checkpoint: CheckpointSample, folders: "_Folders") -> None:
        """Of a file that is cut off anywhere, something raises `CheckpointError`, and nothing raises anything else."""
        for share in (0.0, 0.001, 0.1, 0.5, 0.9, 0.999):

            def cut(raw: bytes, share: float = share) -> bytes:
                return raw[: int(len(raw) * share)]

            said = _read_damaged(checkpoint, folders(), cut)
            assert said, f"a file of {share:.1%} of its bytes reads as a whole one"

    def test_damaged_files_raise_nothing_else(self, checkpoint: CheckpointSample, folders: "_Folders") -> None:
        """Whatever bytes of the header are wrong, only `CheckpointError` is raised, if anything.

        What breaks it: counts and lengths that are believed, so that memory runs out or an index is out of range.
        """
        rng = np.random.default_rng(0)
        for _ in range(40):

            def flip(raw: bytes) -> bytes:
                spoilt = bytearray(raw)
                for position in rng.integers(0, min(len(raw), 2000), 3):
                    spoilt[position] = rng.integers(256)
                return bytes(spoilt)

            _read_damaged(checkpoint, folders(), flip)


def opened(sample: CheckpointSample) -> Checkpoint:
    """Open the sample's file."""
    return sample.reader.open(sample.path)


def _read_damaged(sample: CheckpointSample, folder: Path, damage: Callable[[bytes], bytes]) -> str:
    """Read all of a copy whose largest file is damaged; return what `CheckpointError` said, or an empty string."""
    copy = folder / sample.path.name
    if sample.path.is_dir():
        shutil.copytree(sample.path, copy)
    else:
        shutil.copy(sample.path, copy)
    largest = max([copy, *copy.rglob("*")], key=lambda path: path.stat().st_size if path.is_file() else -1)
    largest.write_bytes(damage(largest.read_bytes()))
    try:
        one: Any = sample.reader.open(copy)
        for read in (one.config, one.generation_config, one.tokenizer):
            _unless_missing(read)
        for name in one.tensor_names():
            one.info(name)
            one.tensor(name)
    except CheckpointError as error:
        return str(error)
    return ""


def _unless_missing(read: Callable[[], Any]) -> None:
    """A sample need not have a tokenizer."""
    try:
        read()
    except CheckpointError:
        return
