"""The wording of errors about plugins, reviewed like an API: what was asked, why not, what there is, what to do."""

from importlib import metadata

import pytest

from modulm.errors import ModulmError
from modulm.interfaces.support import Accepted, Rejected
from modulm.plugins import builtin, families, known
from modulm.plugins.bootstrap import bootstrap, load_records
from modulm.plugins.choose import choose
from modulm.plugins.discovery import notices
from modulm.plugins.hooks import load_io_processor, load_logits_processors
from modulm.plugins.models import ModelRegistry
from modulm.plugins.platforms import current_platform
from modulm.plugins.registry import registry

FAMILY = "modulm.tool_parsers"
UNCHECKED = "modulm.speculators"  # unchecked here, so that plain objects will do


@pytest.fixture
def installed(site, monkeypatch):
    monkeypatch.setitem(builtin.BUILTIN, FAMILY, {"plain": "site_builtin:Model"})
    monkeypatch.setitem(known.KNOWN, FAMILY, {"hermes": "modulm-parsers-more"})
    odd = {"modulm.executors": {"odd": "site_builtin:Model"}, "vllm.io_processor_plugins": {"io": "site_builtin:Model"}}
    site.install("dist-a", {FAMILY: {"mistral": "gone_module:P", "twice": "a:P"}, **odd})
    site.install("dist-b", {FAMILY: {"twice": "b:P"}}, version="2.0")
    return site


def message(call, *args, **options):
    with pytest.raises(ModulmError) as caught:
        call(*args, **options)
    return str(caught.value)


GET = {
    "mistrall": "Tool parser 'mistrall' is unknown. Installed: mistral, plain. Did you mean 'mistral'?",
    "zzz": "Tool parser 'zzz' is unknown. Installed: mistral, plain. `modulm plugins list` shows where each comes "
    "from.",
    "hermes": "Tool parser 'hermes' is not installed. It comes with modulm-parsers-more: pip install "
    "modulm-parsers-more.",
    "mistral": "Tool parser 'mistral' (dist-a 1.0) is installed but broken: loading 'gone_module:P' raised "
    "ModuleNotFoundError: No module named 'gone_module'. Upgrade, mend or remove it.",
    "twice": "Tool parser 'twice' comes from 2 packages: dist-a 1.0 (a:P) and dist-b 2.0 (b:P). None of them is used "
    "until one is chosen: write 'dist-a:twice' or 'dist-b:twice' in place of 'twice', put one into VLLM_PLUGINS (as "
    "+dist-a:twice), or uninstall the others.",
}


@pytest.mark.parametrize("name", GET)
def test_asking_by_name(installed, name):
    assert message(registry(FAMILY).get, name) == GET[name]


def test_turned_off(installed, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "twice")
    installed.forget()
    assert message(registry(FAMILY).get, "mistral") == (
        "Tool parser 'mistral' comes with dist-a 1.0 and is kept out: VLLM_PLUGINS='twice' does not name it. Add "
        "'mistral' to VLLM_PLUGINS to use it."
    )


def test_declared_by_nothing_although_its_package_is_there(installed, monkeypatch):
    monkeypatch.setitem(known.KNOWN, FAMILY, {"hermes": "dist-b"})
    assert message(registry(FAMILY).get, "hermes") == (
        "Tool parser 'hermes' is not installed. It comes with dist-b, but version 2.0, which is installed, does not "
        "declare it: pip install --upgrade --force-reinstall dist-b."
    )


def test_wrong_type(installed):
    assert message(registry("modulm.executors").get, "odd") == (
        "Executor 'odd' (dist-a 1.0) is class site_builtin.Model, but must be a class that derives from "
        "modulm.interfaces.executor.Executor."
    )


def test_taken(installed):
    assert message(registry(FAMILY).register, "plain", "m:P") == (
        "Tool parser 'plain' cannot be registered: the name is taken by modulm-core (built in). Choose another name, "
        "or replace it with register('plain', ..., override=True)."
    )


def test_choosing(installed, monkeypatch):
    monkeypatch.delitem(families._BASES, UNCHECKED)
    registry(UNCHECKED).register("no", Rejected)
    registry(UNCHECKED).register("yes", Accepted)

    def ask_class(found):
        return found("head size 320 is above its limit of 256")

    assert message(choose, UNCHECKED, "no", ["no", "yes"], ask_class) == (
        "Speculator 'no' cannot serve here: head size 320 is above its limit of 256. Accepted instead: yes. Leave the "
        "choice to 'auto', or name one of those."
    )
    assert message(choose, UNCHECKED, None, ["no"], ask_class) == (
        "No speculator can serve here. Asked: no: head size 320 is above its limit of 256. Install one that can, or "
        "change what it refuses."
    )


def test_vllm_plugins_names_nothing(installed, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "+mistrl")
    installed.forget()
    assert notices()[0] == (
        "VLLM_PLUGINS names 'mistrl', but no installed package provides a plugin of that name. Did you mean 'mistral'? "
        "Discovered: odd (modulm.executors, dist-a 1.0), mistral (modulm.tool_parsers, dist-a 1.0), twice "
        "(modulm.tool_parsers, dist-a 1.0), twice (modulm.tool_parsers, dist-b 2.0), io (vllm.io_processor_plugins, "
        "dist-a 1.0). Correct the name, or install its package into this environment."
    )


def test_a_general_plugin_that_fails(installed, caplog):
    installed.install(
        "dist-c", {"vllm.general_plugins": {"sad": "sad_module:f"}}, sad_module="def f(): raise ValueError('x')"
    )
    bootstrap()
    reason = "General plugin 'sad' (dist-c 1.0) is installed but broken: calling it raised ValueError: x. "
    reason += "Upgrade, mend or remove it."
    assert f"{reason} It is left out. MODULM_STRICT_PLUGINS=1 makes this an error." in caplog.messages
    assert [record.reason for record in load_records() if record.name == "sad"] == [reason]


def test_hooks(installed):
    assert message(load_io_processor, "io") == (
        "IO processor 'io' (dist-a 1.0) answered an object of type Model, but must answer a class path or None."
    )
    assert message(load_io_processor, "ioo") == "IO processor 'ioo' is unknown. Installed: io. Did you mean 'io'?"
    assert message(load_logits_processors, ["site_builtin.Model"]) == (
        "Logits processor 'site_builtin.Model' is no reference to a class. Write 'module:Class'."
    )


def test_models_and_platforms(installed):
    assert message(ModelRegistry.resolve_model_cls, ["XForCausalLM"]).startswith(
        "Model architectures ['XForCausalLM'] are not supported for now. Supported architectures: BuiltInForCausalLM."
    )
    assert message(current_platform, "vulkan") == (
        "Platform 'vulkan' is unknown. There are: cuda, cpu. Leave the option at 'auto' to choose automatically."
    )


def test_unknown_family_and_parser_file(installed):
    from modulm.config import EngineConfig

    assert message(registry, "modulm.kernel").startswith("Plugin family 'modulm.kernel' is unknown. There are: ")
    assert message(bootstrap, EngineConfig.make(model="m", tool_parser_plugin="gone_module")) == (
        "tool_parser_plugin='gone_module' cannot be imported: ModuleNotFoundError: No module named 'gone_module'. "
        "Correct the file, or leave the option out."
    )


@pytest.mark.parametrize(
    ("family", "noun", "names"),
    [
        (
            "modulm.structured_output",
            "Structured output backend",
            ["guidance", "lm-format-enforcer", "outlines", "xgrammar"],
        ),
        ("modulm.tool_parsers", "Tool parser", ["hermes", "llama3_json", "qwen3_coder"]),
        ("modulm.reasoning_parsers", "Reasoning parser", ["deepseek_r1", "qwen3"]),
    ],
)
def test_what_first_party_packages_bring_is_named_with_its_package(site, monkeypatch, family, noun, names):
    """In an environment that has none of them, for every name that the table of known ones has."""

    def none(distribution):
        raise metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(metadata, "version", none)
    assert set(names) <= set(known.KNOWN[family])
    for name, package in known.KNOWN[family].items():
        asked = message(choose, family, name, registry(family).names(), lambda cls: cls.supports(None))
        assert asked == f"{noun} {name!r} is not installed. It comes with {package}: pip install {package}."
