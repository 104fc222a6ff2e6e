"""Recordings on disk: what is written comes back, what is damaged or foreign counts as absent."""

import os
import subprocess
import sys

import pytest

from modulm import programs
from modulm.interfaces.attention import AttentionSpec
from modulm.interfaces.program import Embedding, Graph, Linear, LMHead, Section, Value
from modulm.interfaces.recipe import Recipe

GRAPH = Graph(
    values=(Value((), "int64"), Value((4,), "float32"), Value((4,), "float32"), Value((9,), "float32")),
    forward=Section(
        inputs={"token_ids": 0},
        ops=(
            Embedding(inputs=(0,), outputs=(1,), weight="embed"),
            Linear(inputs=(1,), outputs=(2,), weight="w", bias="b"),
        ),
        output=2,
    ),
    logits=Section(inputs={"hidden": 2}, ops=(LMHead(inputs=(2,), outputs=(3,), weight="embed"),), output=3),
    weights={"embed": (9, 4), "w": (4, 4)},
    tensors={"b": Value((4,), "float32")},
    layers={"attn": AttentionSpec(num_heads=2, num_kv_heads=1, head_size=8, scale=0.5, sliding_window=3)},
)
MODEL = programs.SavedModel(
    config_defaults={"head_dim": 8},
    graph=GRAPH,
    recipes={"w": Recipe(("a", "b"), (1, 3), 4, "linear"), "embed": Recipe(("e",), (9,), 4, "embedding", slice=2)},
    tensors={"b": bytes(16)},
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MODULM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "programs"


def test_what_is_saved_comes_back(folder):
    assert programs.load("k") is None
    programs.save("k", MODEL)
    assert programs.load("k") == MODEL
    assert programs.load("other") is None
    assert [file.suffix for file in folder.iterdir()] == [".program"]  # nothing half-written is left


def test_a_file_under_another_key_is_foreign(folder):
    programs.save("k", MODEL)
    (folder / "k.program").rename(folder / "l.program")
    assert programs.load("l") is None


@pytest.mark.parametrize("at", ["start", "digest", "middle", "end"])
def test_every_damaged_byte_is_noticed_and_the_file_is_written_again(folder, at):
    programs.save("k", MODEL)
    path = folder / "k.program"
    content = bytearray(path.read_bytes())
    content[{"start": 0, "digest": 20, "middle": len(content) // 2, "end": -1}[at]] ^= 1
    path.write_bytes(content)
    assert programs.load("k") is None
    programs.save("k", MODEL)
    assert programs.load("k") == MODEL


@pytest.mark.parametrize("length", [0, 5, 30, 60, 200])
def test_a_file_cut_off_is_noticed(folder, length):
    programs.save("k", MODEL)
    path = folder / "k.program"
    path.write_bytes(path.read_bytes()[:length])
    assert programs.load("k") is None


def test_where_nothing_can_be_written_a_warning_is_all(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("MODULM_CACHE_DIR", str(tmp_path / "file"))
    programs.save("k", MODEL)
    assert "not kept for the next start" in caplog.text
    assert programs.load("k") is None


def test_folders_in_order_of_precedence(tmp_path, monkeypatch):
    assert programs.folder() == tmp_path / "cache" / "programs"
    monkeypatch.delenv("MODULM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert programs.folder() == tmp_path / "xdg" / "modulm" / "programs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert programs.folder() == tmp_path / ".cache" / "modulm" / "programs"


def test_a_key_changes_with_every_part_and_not_with_their_order(tmp_path):
    key = programs.key_of(a=1, b={"x": [1, 2]})
    assert key == programs.key_of(b={"x": [1, 2]}, a=1)
    assert key not in (programs.key_of(a=2, b={"x": [1, 2]}), programs.key_of(a=1, b={"x": [2, 1]}))
    source = tmp_path / "model.py"
    source.write_text("one")
    before = programs.source_state([source])
    os.utime(source, ns=(1, 1))
    assert programs.source_state([source]) != before


def test_reading_one_imports_no_torch(folder):
    programs.save("k", MODEL)
    code = "import sys; from modulm import programs; assert programs.load('k'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
