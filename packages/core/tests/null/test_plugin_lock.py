"""`modulm plugins lock` and `verify`, and an engine that is held to the file: `--plugins-lock`."""

import json
import tomllib

import pytest

from modulm.cli import main
from modulm.config import EngineConfig
from modulm.errors import ConfigError, Incompatible
from modulm.plugins import discovery
from modulm.plugins.bootstrap import bootstrap
from modulm.plugins.registry import registry

GENERAL, PARSERS = "vllm.general_plugins", "modulm.tool_parsers"
MARK = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\nclass P: ...\ndef f(): ..."


@pytest.fixture
def two(site):
    site.install("dist-a", {PARSERS: {"a": "m_a:P"}}, version="2.0", m_a=MARK)
    site.install("dist-b", {GENERAL: {"b": "m_b:f"}}, m_b=MARK)
    return site


@pytest.fixture
def lock(two, plugins):
    assert plugins("lock")["damaged"] == {}
    return two.folder / "modulm-plugins.lock"


@pytest.fixture
def plugins(two, capsys, monkeypatch):
    """Run `modulm plugins ACTION --json` in this process, which finds nothing but what the site has."""
    monkeypatch.chdir(two.folder)

    def run(action, expected=0):
        two.forget()
        assert main(["plugins", action, "--json"]) == expected
        return json.loads(capsys.readouterr().out)

    return run


def imported(site):
    return (site.folder / "imported").exists()


def test_the_file_says_what_is_installed(two, lock):
    held = {one["name"]: one for one in tomllib.loads(lock.read_text())["distribution"]}
    assert (held["dist-a"]["version"], held["dist-a"]["plugins"]) == ("2.0", [f"{PARSERS}:a"])
    assert held["dist-a"]["digest"].startswith("record:sha256:") and not imported(two)
    assert held["dist-a"]["digest"] != held["dist-b"]["digest"]


def verify(two, plugins, expected=1):
    found = [(each["distribution"], each["kind"]) for each in plugins("verify", expected)["differences"]]
    assert not imported(two)
    return found


def test_nothing_changed(two, lock, plugins):
    assert verify(two, plugins, 0) == []


def change_file(two):
    (two.folder / "m_a.py").write_text(MARK + "\nimport os")


def other_record(two):
    change_file(two)
    record = two.folder / "dist_a-2.0.dist-info" / "RECORD"
    lines = record.read_text().splitlines()
    record.write_text(
        "\n".join(two._recorded(two.folder / "m_a.py").strip() if "m_a" in line else line for line in lines)
    )


def upgrade(two):
    old = two.folder / "dist_a-2.0.dist-info"
    for name in ("METADATA", "RECORD", "entry_points.txt"):
        (old / name).unlink()
    old.rmdir()
    two.install("dist-a", {PARSERS: {"a": "m_a:P"}}, version="2.1", m_a=MARK)


def remove(two):
    (two.folder / "dist_a-2.0.dist-info" / "entry_points.txt").unlink()


def declare_more(two):
    with (two.folder / "dist_a-2.0.dist-info" / "entry_points.txt").open("a") as file:
        file.write("more = m_a:P\n")


CHANGES = {
    change_file: "damaged",
    other_record: "digest",
    upgrade: "version",
    remove: "missing",
    declare_more: "plugins",
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen_by_verify_and_refused_by_the_engine(two, lock, plugins, change):
    change(two)
    assert verify(two, plugins) == [("dist-a", CHANGES[change])]
    two.forget()
    config = EngineConfig.make(model="m", plugins_lock=str(lock))
    with pytest.raises(Incompatible, match="is not what is installed: dist-a .*modulm plugins lock"):
        bootstrap(config)
    assert not imported(two)


def test_what_is_not_in_the_lock_is_not_imported(two, lock, plugins, monkeypatch, caplog):
    two.install("dist-new", {PARSERS: {"new": "m_new:P"}, GENERAL: {"more": "m_new:f"}}, m_new=MARK)
    assert verify(two, plugins) == [("dist-new", "not locked")]
    two.forget()
    bootstrap(EngineConfig.make(model="m", plugins_lock=str(lock)))
    states = {record.name: record.state for record in discovery.records()}
    assert states == {"a": "available", "b": "loaded", "new": "refused", "more": "refused"}
    assert "keeps out what it does not list: new (modulm.tool_parsers, dist-new 1.0), more" in caplog.text.replace(
        "more (vllm.general_plugins, dist-new 1.0), new", "new (modulm.tool_parsers, dist-new 1.0), more"
    )
    with pytest.raises(Incompatible, match="'new' comes with dist-new 1.0 and is kept out: the plugins lock"):
        registry(PARSERS).get("new")
    two.forget()
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    with pytest.raises(Incompatible, match="'more' .dist-new 1.0. is not locked"):
        bootstrap(EngineConfig.make(model="m", plugins_lock=str(lock)))


def test_installers_lines_make_no_difference(two, lock, plugins):
    info = two.folder / "dist_a-2.0.dist-info"
    own = [f"{info.name}/{name},sha256=x,3" for name in ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")]
    with (info / "RECORD").open("a") as record:
        record.write("\n".join([*own, "__pycache__/m_a.cpython-311.pyc,,", "../../bin/tool,sha256=y,9", ""]))
    assert verify(two, plugins, 0) == []


def test_sources_are_locked_where_the_installation_is_editable(two, plugins):
    (two.folder / "dist_a-2.0.dist-info" / "direct_url.json").write_text(
        '{"url": "file:///x", "dir_info": {"editable": true}}'
    )
    plugins("lock")
    text = (two.folder / "modulm-plugins.lock").read_text()
    assert text.count("sources:sha256:") == 1
    assert verify(two, plugins, 0) == []
    change_file(two)
    assert verify(two, plugins) == [("dist-a", "digest")]


def test_damaged_installations_are_not_locked(two, plugins):
    change_file(two)
    report = plugins("lock", 1)
    assert report["damaged"] == {"dist-a": ["m_a.py"]} and "dist-a" not in report["distributions"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("{", "Invalid"),
        ("", "its lock-version is None, and 1 is what is read here"),
        ("lock-version = 1\n[[distribution]]\nname = 'x'\n", "'version' is missing"),
    ],
)
def test_what_is_no_lock_file(two, tmp_path, command, text, reason):
    path = tmp_path / "some.lock"
    if text is not None:
        path.write_text(text)
    _, stderr, status = command(two, "verify", str(path))
    assert status == 2 and reason in stderr and f"modulm plugins lock {path}" in stderr
    with pytest.raises(ConfigError, match="cannot be read"):
        bootstrap(EngineConfig.make(model="m", plugins_lock=str(path)))


def test_real_commands_refuse_before_anything_is_imported(two, command):
    lock = str(two.folder / "own.lock")
    assert command(two, "lock", lock)[2] == 0 and command(two, "verify", lock)[2] == 0
    change_file(two)
    out, _, status = command(two, "verify", lock)
    assert status == 1 and "damaged: dist-a 2.0 has files that were changed since it was installed: m_a.py" in out
    words = ("config", "--explain", "--model", "nowhere", "--plugins-lock", lock)
    _, stderr, status = command(two, *words, program=("-m", "modulm.cli"))
    assert status == 2 and "dist-a 2.0 has files that were changed since it was installed: m_a.py" in stderr
    assert not imported(two)
