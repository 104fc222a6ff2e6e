import logging

import pytest

from modulm.cli import main
from modulm.errors import ConfigError, Incompatible, UnknownName
from modulm.plugins import discovery

GENERAL = "vllm.general_plugins"
KERNELS = "modulm.kernels"


def test_records_say_where_everything_comes_from_and_import_nothing(site):
    site.install("dist-a", {GENERAL: {"one": "exploding:f"}, KERNELS: {"k": "exploding:K"}}, version="2.1",
                 exploding="raise SystemExit('imported')")  # fmt: skip
    found = [(r.group, r.name, r.value, r.origin, r.state, r.seconds) for r in discovery.records()]
    assert found == [
        (KERNELS, "k", "exploding:K", "dist-a 2.1", "available", None),
        (GENERAL, "one", "exploding:f", "dist-a 2.1", "available", None),
    ]


def test_other_groups_and_damaged_neighbours_are_passed_over(site):
    site.install("dist-a", {"console_scripts": {"x": "m:f"}, KERNELS: {"k": "m:K"}})
    damaged = site.folder / "damaged-1.0.dist-info"
    damaged.mkdir()
    (damaged / "entry_points.txt").write_text("[modulm.kernels]\nlost = m:K\n")
    site.forget()
    assert [r.name for r in discovery.records()] == ["k"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("entry_points.txt", b"[modulm.kernels]\nno equals sign\n"),
        ("entry_points.txt", b"[modulm.kernels]\n\xff\xfe = m:K\n"),
        ("METADATA", b"\xff\xfe"),
        ("METADATA", b"Metadata-Version: 2.1\n\nName: below the headers\n"),
        ("METADATA", b"Metadata-Version: 2.1\nName: called-otherwise\nVersion: 1.0\n"),
        ("RECORD", b"\xff\xfe,,\n"),
        ("direct_url.json", b"{"),
    ],
)
def test_whatever_is_damaged_the_others_are_found(site, file, content, capsys):
    site.install("dist-a", {KERNELS: {"k": "m:K"}}, m="class K: ...")
    (site.install("dist-b", {KERNELS: {"other": "m:K"}}) / file).write_bytes(content)
    site.forget()
    assert "k" in [r.name for r in discovery.records()]
    for action in ("list", "lock", "verify", "doctor"):
        extra = ["--no-import"] if action == "doctor" else ["--group", KERNELS] if action == "list" else []
        if action in ("lock", "verify"):
            extra = [str(site.folder / "some.lock")]
        assert main(["plugins", action, *extra]) in (0, 1)
    capsys.readouterr()


def test_a_second_copy_of_a_distribution_does_not_count(site, tmp_path, monkeypatch):
    site.install("dist-a", {KERNELS: {"k": "m:New"}}, version="2.0")
    stale = site.folder / "dist_a-1.0.egg-info"
    stale.mkdir()
    (stale / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: dist-a\nVersion: 1.0\n")
    (stale / "entry_points.txt").write_text("[modulm.kernels]\nk = m:Old\n")
    site.forget()
    assert len(discovery.records()) == 1


def test_read_once_per_process(site, monkeypatch):
    site.install("dist-a", {KERNELS: {"k": "m:K"}})
    first = discovery.records()
    monkeypatch.setenv("VLLM_PLUGINS", "")
    assert discovery.records()[0] is first[0] and first[0].state == "available"


def test_what_the_list_turned_off_is_said_once(site, monkeypatch, caplog):
    site.install("dist-a", {GENERAL: {"one": "m:f"}, KERNELS: {"fast": "m:K"}})
    monkeypatch.setenv("VLLM_PLUGINS", "one")
    discovery.announce()
    discovery.announce()
    assert [r.getMessage() for r in caplog.records] == [
        "VLLM_PLUGINS='one' turns off: fast (modulm.kernels, dist-a 1.0)."
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_plus_turns_nothing_off(site, monkeypatch, caplog):
    site.install("dist-a", {GENERAL: {"one": "m:f"}, KERNELS: {"fast": "m:K"}})
    monkeypatch.setenv("VLLM_PLUGINS", "+one")
    discovery.announce()
    assert caplog.records == []


def test_an_unmatched_name_is_an_error_only_when_strict(site, monkeypatch, caplog):
    site.install("dist-a", {GENERAL: {"one": "m:f"}})
    monkeypatch.setenv("VLLM_PLUGINS", "onee")
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    for _ in range(2):
        with pytest.raises(UnknownName, match="Did you mean 'one'"):
            discovery.announce()
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "0")
    discovery.announce()
    assert "names 'onee'" in caplog.text and "one (vllm.general_plugins, dist-a 1.0)" in caplog.text


def test_the_deny_list_is_checked_and_named_in_the_refusal(site, monkeypatch, caplog):
    site.install("dist-a", {KERNELS: {"fast": "m:K", "slow": "m:K"}})
    monkeypatch.setenv("MODULM_DISABLE_PLUGINS", "fast, fastt, torch")
    caplog.set_level("INFO", "modulm")
    discovery.announce()
    said = "\n".join(r.getMessage() for r in caplog.records)
    assert "MODULM_DISABLE_PLUGINS names 'fastt', but no installed package" in said and "Did you mean 'fast'?" in said
    assert "names 'torch'" in said and "what is built in cannot be turned off" in said
    assert "MODULM_DISABLE_PLUGINS turns off: fast (modulm.kernels, dist-a 1.0)." in said and "slow (" not in said[-80:]
    with pytest.raises(ConfigError, match="'fast' comes with dist-a 1.0.*Take it out of MODULM_DISABLE_PLUGINS"):
        discovery.find(KERNELS, "fast")
    site.forget()
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    with pytest.raises(UnknownName, match="MODULM_DISABLE_PLUGINS names 'fastt'"):
        discovery.announce()


def test_duplicates_are_warned_of_or_refused_when_asked_for(site, monkeypatch, caplog):
    for name in ("dist-a", "dist-b"):
        site.install(name, {KERNELS: {"fast": f"{name[-1]}:K"}})
    discovery.announce()
    assert "'fast' comes from 2 packages: dist-a 1.0 (a:K) and dist-b 1.0 (b:K)" in caplog.text
    for variable, value in (("VLLM_PLUGINS", "fast"), ("MODULM_STRICT_PLUGINS", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            site.forget()
            with pytest.raises(Incompatible, match="dist-a 1.0.*dist-b 1.0"):
                discovery.announce()


def test_a_settled_duplicate_is_not_warned_of(site, monkeypatch, caplog):
    for name in ("dist-a", "dist-b"):
        site.install(name, {KERNELS: {"fast": "m:K"}})
    monkeypatch.setenv("VLLM_PLUGINS", "+dist-b:fast")
    discovery.announce()
    assert caplog.records == []
    chosen = discovery.find(KERNELS, "fast")
    assert chosen is not None and chosen.distribution == "dist-b"


def test_find(site, monkeypatch):
    site.install("dist-a", {KERNELS: {"a": "m:K", "both": "m:K"}})
    site.install("Dist_B", {KERNELS: {"both": "m:K"}})
    assert discovery.find(KERNELS, "none") is None
    assert discovery.find("modulm.attention", "a") is None
    for name in ("a", "dist-a:a", "DIST.A:a"):
        assert discovery.find(KERNELS, name).name == "a"
    assert discovery.find(KERNELS, "dist-b:both").distribution == "Dist_B"
    with pytest.raises(Incompatible, match="comes from 2 packages"):
        discovery.find(KERNELS, "both")
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    site.forget()
    with pytest.raises(ConfigError, match="VLLM_PLUGINS='other' does not name it"):
        discovery.find(KERNELS, "a")
