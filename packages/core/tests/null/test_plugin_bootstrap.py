"""General plugins and parser files: loaded once in each process, failures isolated.

Of vLLM's own tests (its tests/plugins_tests): a plugin's architecture is known, and with VLLM_PLUGINS="" it is "not
supported for now", test_an_architecture_is_known_as_long_as_its_plugin_is_allowed; with a model that computes,
tests/cpu/test_plugged_in.py. Names in VLLM_PLUGINS that match nothing (test_load_plugins_warning, newer than 0.32)
are in test_plugin_discovery.py. A general plugin that raises ends the start there; here it is left out, unless
MODULM_STRICT_PLUGINS is set. There is no replaceable scheduler, so test_scheduler_plugins has no counterpart.
"""

import os
import sys
import threading

import pytest

from modulm.config import EngineConfig
from modulm.errors import Broken, ConfigError, Incompatible
from modulm.plugins.bootstrap import bootstrap, load_records
from modulm.plugins.models import ModelRegistry
from modulm.plugins.registry import registry

GENERAL = "vllm.general_plugins"
PARSERS = "modulm.tool_parsers"
GOOD = """
from modulm.plugins.registry import registry
calls = []
def register():
    calls.append(1)
    registry("modulm.tool_parsers").register("good", "m:P")
"""
HALF = """
from modulm.plugins.registry import registry
def register():
    registry("modulm.tool_parsers").register("half", "m:P")
    raise ValueError("half-way")
"""


def state_of(name):
    (record,) = [record for record in load_records() if record.name == name]
    return record


def test_runs_each_general_plugin_once(site, caplog):
    caplog.set_level("INFO", "modulm")
    site.install("dist-a", {GENERAL: {"good": "p_good:register"}}, p_good=GOOD)
    for _ in range(3):
        bootstrap()
    assert sys.modules["p_good"].calls == [1]
    record = state_of("good")
    assert (record.state, record.registered) == ("loaded", [f"{PARSERS}:good"]) and record.seconds > 0
    assert "Plugins loaded: good (dist-a 1.0, modulm.tool_parsers:good)." in caplog.text


def test_runs_once_however_many_threads_call(site):
    slow = GOOD.replace("calls.append(1)", "calls.append(1); import time; time.sleep(0.05)")
    site.install("dist-a", {GENERAL: {"good": "p_slow:register"}}, p_slow=slow)
    threads = [threading.Thread(target=bootstrap) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.modules["p_slow"].calls == [1] and "good" in registry(PARSERS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_runs_again_in_a_forked_child(site):
    site.install("dist-a", {GENERAL: {"good": "p_fork:register", "sad": "p_half:register"}}, p_fork=GOOD, p_half=HALF)
    bootstrap()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            bootstrap()
            bootstrap()
            record = state_of("good")
            answer = f"{len(sys.modules['p_fork'].calls)} {record.state} {record.registered} {state_of('sad').state}"
        except BaseException as error:
            answer = repr(error)
        os.write(writer, answer.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1000).decode() == f"2 loaded ['{PARSERS}:good'] broken"
    assert sys.modules["p_fork"].calls == [1]


def test_a_plugin_may_call_bootstrap_itself(site):
    text = "from modulm.plugins.bootstrap import bootstrap\ndef register():\n    bootstrap()\n"
    site.install("dist-a", {GENERAL: {"good": "p_self:register"}}, p_self=text)
    bootstrap()
    assert state_of("good").state == "loaded"


def test_failures_leave_nothing_and_the_others_go_on(site, caplog):
    broken = {"a_import": "p_missing:f", "b_half": "p_half:register", "c_type": "p_type:it", "d_exit": "p_exit:f"}
    site.install("dist-a", {GENERAL: {**broken, "z_good": "p_good:register"}}, p_good=GOOD, p_half=HALF,
                 p_type="it = 'text'", p_exit="def f(): raise SystemExit(1)")  # fmt: skip
    bootstrap()
    assert registry(PARSERS).names() == ["good"]
    assert {name: state_of(name).state for name in broken} == dict.fromkeys(broken, "broken")
    assert state_of("z_good").state == "loaded"
    assert "No module named 'p_missing'" in caplog.text and "Traceback" in caplog.text
    assert "ValueError: half-way" in state_of("b_half").reason
    assert "is an object of type str, but must be callable" in state_of("c_type").reason
    assert "SystemExit: 1" in state_of("d_exit").reason


@pytest.mark.parametrize(
    ("value", "error"), [("p_half:register", Broken), ("p_missing:f", Broken), ("p_half:__name__", Incompatible)]
)
def test_strict_makes_failures_errors_and_a_retry_possible(site, monkeypatch, value, error):
    site.install("dist-a", {GENERAL: {"sad": value}}, p_half=HALF)
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    for _ in range(2):
        with pytest.raises(error):
            bootstrap()
    assert registry(PARSERS).names() == []


@pytest.mark.parametrize(("text", "is_known"), [(None, True), ("", False), ("other", False), ("register_dummy", True)])
def test_an_architecture_is_known_as_long_as_its_plugin_is_allowed(site, monkeypatch, text, is_known):
    code = "from modulm import ModelRegistry\ndef register():\n"
    code += "    if 'MyForCausalLM' not in ModelRegistry.get_supported_archs():\n"
    code += "        ModelRegistry.register_model('MyForCausalLM', 'site_builtin:Model')\n"
    site.install("dist-a", {GENERAL: {"register_dummy": "p_dummy:register"}}, p_dummy=code)
    if text is not None:
        monkeypatch.setenv("VLLM_PLUGINS", text)
    bootstrap()
    if is_known:
        assert ModelRegistry.resolve_model_cls("MyForCausalLM")[0].__name__ == "Model"
    else:
        with pytest.raises(ValueError, match=r"\['MyForCausalLM'\] are not supported for now"):
            ModelRegistry.resolve_model_cls("MyForCausalLM")


def test_the_list_decides(site, monkeypatch):
    site.install("dist-a", {GENERAL: {"good": "p_good:register", "sad": "p_half:register"}}, p_good=GOOD, p_half=HALF)
    monkeypatch.setenv("VLLM_PLUGINS", "good")
    bootstrap()
    assert (state_of("good").state, state_of("sad").state) == ("loaded", "disabled")


def test_duplicates_are_not_run(site, monkeypatch):
    for name in ("dist-a", "dist-b"):
        site.install(name, {GENERAL: {"good": "p_good:register"}}, p_good=GOOD)
    bootstrap()
    assert "p_good" not in sys.modules and {record.state for record in load_records()} == {"shadowed"}
    monkeypatch.setenv("VLLM_PLUGINS", "+dist-b:good")
    site.forget()
    bootstrap()
    assert [record.state for record in load_records()] == ["shadowed", "loaded"]


def config(**options):
    return EngineConfig.make(model="m", **options)


@pytest.mark.parametrize("option", ["tool_parser_plugin", "reasoning_parser_plugin"])
def test_a_parser_file_is_imported_once(site, tmp_path, option):
    file = tmp_path / "my_parser.py"
    file.write_text(
        "from modulm.plugins.registry import registry\nregistry('modulm.tool_parsers').register('f', 'm:P')\n"
    )
    for _ in range(2):
        bootstrap(config(**{option: str(file)}))
    assert "f" in registry(PARSERS)
    record = state_of(str(file))
    assert (record.group, record.state, record.registered) == (option, "loaded", [f"{PARSERS}:f"])


def test_a_parser_module_by_name_after_an_earlier_call_without(site):
    site.install("dist-a", p_named="from modulm.plugins.registry import registry\n"
                 "registry('modulm.tool_parsers').register('named', 'm:P')\n")  # fmt: skip
    bootstrap()
    assert "named" not in registry(PARSERS)
    bootstrap(config(tool_parser_plugin="p_named"))
    assert "named" in registry(PARSERS)


def test_a_parser_file_that_fails_stops_with_its_cause(site, tmp_path):
    file = tmp_path / "sad_parser.py"
    file.write_text(
        "from modulm.plugins.registry import registry\nregistry('modulm.tool_parsers').register('f', 'm:P')\n1 / 0\n"
    )
    with pytest.raises(Broken, match="ZeroDivisionError: division by zero") as caught:
        bootstrap(config(tool_parser_plugin=str(file)))
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and "f" not in registry(PARSERS)
    file.write_text("x = 1\n")
    bootstrap(config(tool_parser_plugin=str(file)))
    with pytest.raises(Broken, match="no_such_parser"):
        bootstrap(config(tool_parser_plugin="no_such_parser"))
    with pytest.raises(ConfigError, match="there is no such file"):
        bootstrap(config(reasoning_parser_plugin=str(tmp_path / "nothing.py")))
