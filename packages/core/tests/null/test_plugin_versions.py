import sys

import pytest

from modulm.errors import Incompatible
from modulm.interfaces import VERSIONS
from modulm.plugins import discovery
from modulm.plugins.bootstrap import bootstrap
from modulm.plugins.families import NOUNS
from modulm.plugins.hooks import load_logits_processors
from modulm.plugins.platforms import current_platform
from modulm.plugins.registry import registry

GENERAL, EXECUTORS, STATED = "vllm.general_plugins", "modulm.executors", "modulm.interface_versions"
PLATFORM, LOGITS = "vllm.platform_plugins", "vllm.logits_processors"
BOOM = "raise SystemExit('imported')"


def test_every_contract_has_a_number():
    assert set(VERSIONS) == set(NOUNS)


@pytest.mark.parametrize("stated", ["v2", "v2:v4", "v1:v3", " v2 : v2 ", "v0:v10"])
def test_a_range_with_our_number_fits(site, monkeypatch, stated):
    monkeypatch.setitem(VERSIONS, EXECUTORS, 2)
    site.install("dist-a", {EXECUTORS: {"x": "m:X"}, STATED: {EXECUTORS: stated, GENERAL: "v9"}})
    (found,) = discovery.records()
    assert (found.name, found.state, found.interface_versions) == ("x", "available", stated.strip())


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ("v1", "for version 1 of contract modulm.executors, and modulm-core here has version 2; upgrade dist-a,"),
        ("v0:v1", "for versions 0 to 1 of contract"),
        ("v3:v4", "for versions 3 to 4 of contract modulm.executors, and modulm-core here has version 2; upgrade "
         "modulm-core,"),
        ("v3:v1", "is no range of versions; its author is to write 'v1' or 'v1:v2'"),
        ("2", "= '2' is no range of versions"),
        ("v2:", "is no range"),
    ],
)  # fmt: skip
def test_a_range_without_it_keeps_the_plugin_from_being_imported(site, monkeypatch, caplog, stated, words):
    monkeypatch.setitem(VERSIONS, EXECUTORS, 2)
    site.install("dist-a", {EXECUTORS: {"x": "v_boom:X"}, STATED: {EXECUTORS: stated}}, v_boom=BOOM)
    site.install("dist-b", {EXECUTORS: {"y": "m:Y"}})
    assert registry(EXECUTORS).names() == ["inprocess", "y"], "the others go on"
    discovery.announce()
    assert "Executor 'x' (dist-a 1.0) is left out: it" in caplog.text.replace("its modulm", "it modulm")
    for name in ("x", "dist-a:x"):
        with pytest.raises(Incompatible) as caught:
            registry(EXECUTORS).get(name)
        assert words in str(caught.value) and "comes with dist-a 1.0 and is kept out" in str(caught.value)
    site.forget()
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    with pytest.raises(Incompatible, match="Executor 'x' \\(dist-a 1.0\\) is installed, but it"):
        discovery.announce()
    assert "v_boom" not in sys.modules


def test_a_general_plugin_of_another_version_is_left_out_even_if_the_list_allows_it(site, monkeypatch, caplog):
    site.install("dist-a", {GENERAL: {"old": "v_boom2:f"}, STATED: {GENERAL: "v7"}}, v_boom2=BOOM)
    monkeypatch.setenv("VLLM_PLUGINS", "old")
    bootstrap()
    assert [r.state for r in discovery.records()] == ["incompatible"] and "upgrade modulm-core" in caplog.text


def test_a_platform_of_another_version_is_the_answer_to_who_asks_for_its_device(site):
    site.install("dist-a", {PLATFORM: {"my_npu": "v_boom3:f"}, STATED: {PLATFORM: "v7"}}, v_boom3=BOOM)
    with pytest.raises(Incompatible, match="version 7"):
        current_platform("my_npu")
    with pytest.raises(RuntimeError, match="'npu' is not there, and a plugin that may provide it failed: .*version 7"):
        current_platform("npu")


def test_a_logits_processor_of_another_version_is_an_error_until_it_is_turned_off(site, monkeypatch):
    """One that is silently missing would change what the model says."""
    site.install("dist-a", {LOGITS: {"guard": "v_boom4:P"}, STATED: {LOGITS: "v7"}}, v_boom4=BOOM)
    with pytest.raises(Incompatible, match="Logits processor 'guard' .*version 7.*MODULM_DISABLE_PLUGINS=guard"):
        load_logits_processors()
    monkeypatch.setenv("MODULM_DISABLE_PLUGINS", "guard")
    site.forget()
    assert load_logits_processors() == []


def test_a_mistyped_contract_is_skipped_with_the_nearest_name(site):
    site.install("dist-a", {STATED: {"modulm.executor": "v1"}})
    (stray,) = discovery.records()
    assert stray.state == "skipped" and "Did you mean 'modulm.executors'?" in stray.reason
