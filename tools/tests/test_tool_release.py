"""Versions, ranges, changelogs and tags that follow from change notes."""

import sys
import tomllib

import pytest

import release
from workspace import ROOT


@pytest.fixture
def released(workspace_root):
    """The workspace after its first release: every changelog has 0.1.0."""
    for file in workspace_root.glob("packages/*/CHANGELOG.md"):
        file.write_text(file.read_text() + "\n## 0.1.0 - 2026-01-01\n")
    return workspace_root


def note(root, name, text="Do the thing."):
    (root / "changes" / name).write_text(text + "\n")


def tags(root):
    return [r.tag for r in release.plan(root, release.fragments(root)[0])]


def test_the_notes_in_the_tree_are_well_formed():
    assert release.fragments(ROOT)[1] == []


@pytest.mark.parametrize(
    ("version", "kind", "following"),
    [
        ("0.1.4", "fix", "0.1.5"),
        ("0.1.4", "feature", "0.1.5"),
        ("0.1.4", "breaking", "0.2.0"),
        ("1.2.3", "fix", "1.2.4"),
        ("1.2.3", "feature", "1.3.0"),
        ("1.2.3", "breaking", "2.0.0"),
    ],
)
def test_next_version(version, kind, following):
    assert release.next_version(version, {kind, "fix"}) == following


def test_first_release_keeps_the_version(workspace_root):
    note(workspace_root, "quant-gguf.start.feature.md")
    assert tags(workspace_root) == ["modulm-quant-gguf-v0.1.0"]


def test_only_what_changed_is_released(released):
    note(released, "quant-gguf.q5.feature.md")
    assert tags(released) == ["modulm-quant-gguf-v0.1.1"]


def test_a_breaking_core_takes_its_dependents_along(released):
    note(released, "core.scheduler.breaking.md")
    plan = {r.package.folder: r for r in release.plan(released, release.fragments(released)[0])}
    assert {folder: r.version for folder, r in plan.items()} == {
        "core": "0.2.0",
        "modulm": "0.1.1",
        "quant-gguf": "0.1.1",
    }
    assert plan["quant-gguf"].requirements == {"modulm-core>=0.1,<0.2": "modulm-core>=0.2,<0.3"}
    assert plan["modulm"].requirements["modulm-quant-gguf>=0.1,<0.2"] == "modulm-quant-gguf>=0.1.1,<0.2"


def test_what_is_released_together_moves_its_floor(released):
    note(released, "core.speed.fix.md")
    note(released, "quant-gguf.speed.fix.md")
    plan = {r.package.folder: r for r in release.plan(released, release.fragments(released)[0])}
    assert sorted(plan) == ["core", "quant-gguf"]
    assert plan["quant-gguf"].requirements == {"modulm-core>=0.1,<0.2": "modulm-core>=0.1.1,<0.2"}


def run(root, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["release.py", *arguments])
    return release.main(root)


def test_dry_run_changes_nothing(released, monkeypatch, capsys):
    note(released, "core.scheduler.breaking.md")
    before = {file: file.read_text() for file in released.rglob("*") if file.is_file()}
    assert run(released, monkeypatch, "--dry-run") == 0
    assert {file: file.read_text() for file in released.rglob("*") if file.is_file()} == before
    assert "git tag modulm-core-v0.2.0" in capsys.readouterr().out


def test_release_writes_versions_ranges_and_changelogs(released, monkeypatch):
    note(released, "core.scheduler.breaking.md", "Rename `a` to `b`.")
    assert run(released, monkeypatch) == 0
    project = {
        folder: tomllib.loads((released / f"packages/{folder}/pyproject.toml").read_text())["project"]
        for folder in ("core", "quant-gguf")
    }
    assert project["core"]["version"] == "0.2.0"
    assert project["quant-gguf"]["dependencies"] == ["modulm-core>=0.2,<0.3"]
    log = (released / "packages/core/CHANGELOG.md").read_text()
    assert (
        log.index("## Unreleased")
        < log.index("## 0.2.0 - ")
        < log.index("- Rename `a` to `b`.")
        < log.index("## 0.1.0")
    )
    assert list((released / "changes").iterdir()) == []
    assert tags(released) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nothing.x.fix.md", "Do it."),
        ("core.x.improvement.md", "Do it."),
        ("core.fix.md", "Do it."),
        ("core.x.fix.md", "Not a sentence"),
        ("core.x.fix.md", "Long " * 100 + "."),
    ],
)
def test_a_malformed_note_stops_the_release(released, monkeypatch, capsys, name, text):
    note(released, name, text)
    assert run(released, monkeypatch) == 1
    assert name in capsys.readouterr().out
    assert (released / "changes" / name).exists()
