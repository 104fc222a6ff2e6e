"""`modulm plugins new` finds templates by entry point and hands on what it was asked for."""

from importlib import metadata

import pytest

from modulm.cli import main, plugins_new


class Fake:
    kinds = {"a": "First.", "long-kind": "Second."}
    licenses = ("MIT", "BSD")

    def write(self, kind, name, folder, license):
        print([kind, name, str(folder), license])
        return [folder / "README.md"]


@pytest.fixture
def templates(monkeypatch):
    entry = metadata.EntryPoint("fake", "unused:unused", "modulm.templates")
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: Fake())
    monkeypatch.setattr(plugins_new.metadata, "entry_points", lambda group: [entry] * (group == entry.group))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["a", "mine"], "['a', 'mine', 'mine', 'MIT']\n1 files in mine"),
        (["a", "mine", "--path", "x/y", "--license", "BSD"], "['a', 'mine', 'x/y', 'BSD']\n1 files in x/y"),
        (["--list"], "a          First.\nlong-kind  Second.\n"),
    ],
)
def test_command(templates, words, wanted, capsys):
    assert main(["plugins", "new", *words]) == 0
    assert capsys.readouterr().out.startswith(wanted)


@pytest.mark.parametrize("words", [[], ["a"]])
def test_kind_and_name_are_needed(templates, words, capsys):
    assert main(["plugins", "new", *words]) == 2
    assert "KIND and NAME are needed" in capsys.readouterr().err


def test_without_templates_the_package_is_named(monkeypatch, capsys):
    monkeypatch.setattr(plugins_new.metadata, "entry_points", lambda group: [])
    assert main(["plugins", "new", "--list"]) == 2
    assert "They come with modulm-testkit: pip install modulm-testkit." in capsys.readouterr().err


def test_templates_are_no_plugins(site, capsys):
    site.install("dist-t", {"modulm.templates": {"fake": "cmd_boom:T"}}, cmd_boom="raise SystemExit('imported')")
    assert main(["plugins", "list"]) == 0
    assert "modulm.templates" not in capsys.readouterr().out
