"""A plugin's own settings: from the command line and YAML into the plugin's class, or refused by name."""

import argparse
from dataclasses import dataclass
from typing import Annotated

import msgspec
import pytest

from modulm.cli.options import add_engine_options, engine_config
from modulm.cli.serve import add_arguments, with_file
from modulm.config import EngineConfig
from modulm.errors import ConfigError, SettingError
from modulm.interfaces.settings import plugin_settings, provide
from modulm.interfaces.support import Accepted
from modulm.plugins.bootstrap import bootstrap
from modulm.plugins.choose import choose
from modulm.plugins.hooks import load_stat_loggers

GENERAL = "vllm.general_plugins"
READS = """
from dataclasses import dataclass
from modulm.interfaces.settings import plugin_settings
@dataclass
class Settings:
    path: str = "none"
    size: int = 3
def register():
    global read
    read = plugin_settings("reads", Settings)
"""


class Struct(msgspec.Struct, kw_only=True):
    path: str
    size: Annotated[int, msgspec.Meta(ge=1)] = 3
    ratio: float = 0.5
    on: bool = False
    ends: tuple[float, ...] = ()
    more: dict[str, int] | None = None


@dataclass(kw_only=True)
class Plain:
    size: int = 3
    path: str = "none"

    def __post_init__(self):
        if self.size > 10:
            raise ValueError("size is above 10")


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    provide({})


def words(*given):
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    return engine_config(parser.parse_args(["--model", "m", *given])).plugin_config


def test_the_command_line_collects_by_plugin():
    assert words() == {}
    given = [f"--plugin-config={each}" for each in ("a.size=3", "b.c.path=x=y, z", "a.path=", "a.size=4")]
    assert words(*given) == {"a": {"size": "4", "path": ""}, "b.c": {"path": "x=y, z"}}


@pytest.mark.parametrize("text", ["a", "a.size", "size=3", ".size=3", "a.=3", ""])
def test_what_is_no_setting_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        words("--plugin-config", text)
    assert "it must be NAME.key=value" in capsys.readouterr().err


def test_a_file_and_the_command_line_are_joined_key_by_key(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("plugin-config:\n  a: {size: 3, path: x}\n  b: {ends: [1, 2]}\n")
    parser = argparse.ArgumentParser()
    add_arguments(parser)

    def given(*more):
        return with_file(parser.parse_args(["m", "--config", str(file), *more])).plugin_config

    assert given() == {"a": {"size": 3, "path": "x"}, "b": {"ends": [1, 2]}}
    both = given("--plugin-config=a.size=9", "--plugin-config=c.d=e")
    assert both == {"a": {"size": "9", "path": "x"}, "b": {"ends": [1, 2]}, "c": {"d": "e"}}
    file.write_text("plugin-config: [a]\n")
    with pytest.raises(ConfigError, match=r"plugin_config=\['a'\] is refused"):
        given("--plugin-config=a.size=9")


@pytest.mark.parametrize("value", [None, [], "a.b=c", {"a": 3}, {"a": None}, {3: {}}, {"a": {3: 4}}])
def test_the_configuration_checks_its_shape(value):
    with pytest.raises(ConfigError, match=r"it must be {plugin's name: {key: value}}"):
        EngineConfig.make(model="m", plugin_config=value)


def test_text_is_read_as_the_setting_s_type():
    given = {"path": "12", "size": "12", "ratio": "2", "on": "true", "ends": "[1, 2.5]", "more": '{"a": 1}'}
    provide({"x": given})
    want = Struct(path="12", size=12, ratio=2.0, on=True, ends=(1.0, 2.5), more={"a": 1})
    assert plugin_settings("x", Struct) == want
    provide({"x": {"path": "12", "size": 12, "ratio": 2, "on": True, "ends": [1, 2.5], "more": {"a": 1}}})
    assert plugin_settings("x", Struct) == want
    assert plugin_settings("y", Plain) == Plain()


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (Plain, {"sise": 3}, "plugin_config 'x.sise' is refused: plugin 'x' has no such setting. There are: size, "
         "path. Did you mean 'size'?"),
        (Plain, {"size": "many"}, "plugin_config 'x.size'='many' is refused: Expected `int`, got `str`. Give a value "
         "of that type."),
        (Plain, {"size": 2.5}, "plugin_config 'x.size'=2.5 is refused: Expected `int`, got `float`"),
        (Plain, {"path": 3}, "plugin_config 'x.path'=3 is refused: Expected `str`, got `int`"),
        (Plain, {"size": 11}, "plugin_config of 'x' is refused: size is above 10. Given: {'size': 11}."),
        (Struct, {"path": "p", "size": "0"}, "plugin_config 'x.size'='0' is refused: Expected `int`"),
        (Struct, {"path": "p", "size": 0}, "plugin_config 'x.size'=0 is refused: Expected `int` >= 1"),
        (Struct, {}, "plugin_config of 'x' is refused: Missing required argument 'path'"),
    ],
)  # fmt: skip
def test_what_a_plugin_cannot_honour_is_refused_by_name(kind, given, message):
    provide({"x": given})
    with pytest.raises(SettingError) as caught:
        plugin_settings("x", kind)
    assert str(caught.value).startswith(message)


def config(**settings):
    return EngineConfig.make(model="m", plugin_config=settings)


def test_they_are_there_before_a_plugin_registers(site):
    site.install("dist-a", {GENERAL: {"reads": "s_reads:register"}}, s_reads=READS)
    bootstrap(config(reads={"size": "7"}))
    import s_reads

    assert (s_reads.read.size, s_reads.read.path) == (7, "none")
    assert plugin_settings("reads", Plain).size == 7
    bootstrap(config())
    assert plugin_settings("reads", Plain).size == 3, "another engine's settings are its own"


def test_settings_for_nobody_are_refused(site):
    site.install("dist-a", {GENERAL: {"reads": "s_nobody:register"}}, s_nobody=READS)
    with pytest.raises(
        ConfigError, match="plugin_config 'raeds' is refused: no installed plugin.*Did you mean 'reads'"
    ):
        bootstrap(config(raeds={"size": "7"}))


def test_a_plugin_s_refusal_stops_the_start_though_nobody_asked_for_the_plugin(site):
    site.install("dist-a", {GENERAL: {"reads": "s_refuses:register"}}, s_refuses=READS)
    for _ in range(2):
        with pytest.raises(SettingError, match="plugin_config 'reads.sise' is refused"):
            bootstrap(config(reads={"sise": "7"}))
    bootstrap(config(reads={"size": "7"}))


def test_a_candidate_that_nobody_asked_for_too(site):
    text = "from dataclasses import make_dataclass\nfrom modulm.interfaces.settings import plugin_settings\n"
    text += "plugin_settings('picky', make_dataclass('Settings', []))\n"
    site.install("dist-a", {"modulm.kernels": {"picky": "s_picky:X"}}, s_picky=text)
    bootstrap(config(picky={"size": "x"}))
    with pytest.raises(SettingError, match="There are: none"):
        choose("modulm.kernels", None, ["picky"], lambda cls: Accepted())


def test_one_that_reads_them_as_it_is_imported_too(site):
    text = READS + "register()\n"
    site.install("dist-a", {"vllm.stat_logger_plugins": {"reads": "s_import:X"}}, s_import=text)
    bootstrap(config(reads={"size": "x"}))
    with pytest.raises(SettingError, match="'reads.size'='x'"):
        load_stat_loggers()
