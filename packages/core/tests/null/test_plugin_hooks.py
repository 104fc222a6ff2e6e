"""The doors of stat loggers, endpoint plugins, IO processors and logits processors.

Of vLLM's own tests (its tests/plugins_tests): a stat logger plugin is discovered, and none with an empty list,
test_stat_loggers; what is no class is an error, `TypeError` there and `Incompatible` here,
test_a_stat_logger_must_be_a_class; in an engine, test_what_becomes_of_a_plugins_logger_is_listed
(tests/cpu/test_async_llm_stats.py). IO processors: a missing name is a `ValueError` that lists what is there,
test_io_processor. Endpoint plugins are in server/test_server_endpoint_plugins.py.
"""

import sys

import pytest

from modulm.errors import Broken, ConfigError, Incompatible, UnknownName, Unsupported
from modulm.plugins import discovery
from modulm.plugins.hooks import (
    load_endpoint_plugins,
    load_io_processor,
    load_logits_processors,
    load_stat_loggers,
)

STATS = """
from modulm.interfaces.metrics import StatLoggerBase
class Good(StatLoggerBase):
    def __init__(self, config, engine_index=0): ...
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
    def log_engine_initialized(self): ...
def function(): return Good
"""
ENDPOINTS = """
class Good:
    name, required_tasks = "good", None
    def attach_router(self, app): ...
    async def init_state(self, engine_client, state, args): ...
class Embed(Good):
    required_tasks = ("embed", "classify")
class Incomplete:
    name = "incomplete"
def fails(): raise KeyError("x")
"""
IO = """
from modulm.interfaces.io_processor import IOProcessor
class Good(IOProcessor):
    def pre_process(self, prompt, request_id=None, **kwargs): ...
    def post_process(self, model_output, request_id=None, **kwargs): ...
def here(): return __name__ + ".Good"
def nowhere(): return None
def wrong(): return __name__ + ".here"
def fails(): raise KeyError("x")
"""
LOGITS = """
from modulm.interfaces.logits import LogitsProcessor
class Good(LogitsProcessor):
    def __init__(self, config, device, is_pin_memory): ...
    def apply(self, logits): return logits
    def is_argmax_invariant(self): return True
    def update_state(self, batch_update): ...
class Inner(Good): __qualname__ = "Good.Inner"
Good.Inner = Inner
class Wrong: ...
"""


def states(group):
    return {record.name: record.state for record in discovery.records(group)}


STAT_LOGGER, ENDPOINT = "vllm.stat_logger_plugins", "vllm.endpoint_plugins"
IO_PROCESSOR, PROCESSOR = "vllm.io_processor_plugins", "vllm.logits_processors"


def test_stat_loggers(site, caplog, monkeypatch):
    site.install("dist-a", {STAT_LOGGER: {"good": "h_stats:Good", "gone": "no_such_module:X"}}, h_stats=STATS)
    assert [cls.__name__ for _, cls in load_stat_loggers()] == ["Good"]
    assert states(STAT_LOGGER) == {"good": "loaded", "gone": "broken"} and "no_such_module" in caplog.text
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    with pytest.raises(Broken, match="Stat logger 'gone' \\(dist-a 1.0\\)"):
        load_stat_loggers()
    monkeypatch.setenv("VLLM_PLUGINS", "")
    site.forget()
    assert load_stat_loggers() == []


def test_a_stat_logger_must_be_a_class(site):
    site.install("dist-a", {STAT_LOGGER: {"bad": "h_stats2:function"}}, h_stats2=STATS)
    with pytest.raises(
        Incompatible, match="Stat logger 'bad' \\(dist-a 1.0\\) is an object of type function, but must be"
    ):
        load_stat_loggers()


def test_endpoints_are_off_until_named(site, caplog, monkeypatch):
    site.install("dist-a", {ENDPOINT: {"ep": "h_ep:Good", "embed": "h_ep:Embed"}}, h_ep=ENDPOINTS)
    assert load_endpoint_plugins(["generate"]) == [] and "h_ep" not in sys.modules
    assert "not named in VLLM_PLUGINS, so they are off: embed, ep." in caplog.text
    monkeypatch.setenv("VLLM_PLUGINS", "+ep, +embed")
    site.forget()
    assert [plugin.name for plugin in load_endpoint_plugins(["generate"])] == ["good"]
    assert states(ENDPOINT) == {"ep": "loaded", "embed": "inactive"}
    assert len(load_endpoint_plugins(["embed"])) == 2 and len(load_endpoint_plugins(None)) == 1


def test_endpoints_that_fail_are_left_out(site, caplog, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "dist-a")
    site.install(
        "dist-a", {ENDPOINT: {"a": "h_ep2:fails", "b": "h_ep2:Incomplete", "c": "h_ep2:Good"}}, h_ep2=ENDPOINTS
    )
    assert len(load_endpoint_plugins(None)) == 1
    assert states(ENDPOINT) == {"a": "broken", "b": "broken", "c": "loaded"}
    assert "calling it raised KeyError" in caplog.text and "attach_router" in caplog.text
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    with pytest.raises(Broken):
        load_endpoint_plugins(None)


def test_io_processor(site, monkeypatch):
    entries = {name: f"h_io:{name}" for name in ("here", "nowhere", "wrong", "fails", "missing")}
    site.install("dist-a", {IO_PROCESSOR: entries}, h_io=IO)
    assert load_io_processor("here").__name__ == load_io_processor("dist-a:here").__name__ == "Good"
    for name, error in [("nowhere", Unsupported), ("wrong", Incompatible), ("fails", Broken), ("missing", Broken)]:
        with pytest.raises(error, match=f"IO processor '{name}' \\(dist-a 1.0\\)"):
            load_io_processor(name)
    with pytest.raises(UnknownName, match="Installed: fails, here, missing, nowhere, wrong. Did you mean 'here'"):
        load_io_processor("heer")
    monkeypatch.setenv("VLLM_PLUGINS", "")
    site.forget()
    with pytest.raises(ConfigError, match="VLLM_PLUGINS='' does not name it"):
        load_io_processor("here")


def test_logits_processors_ignore_the_list_and_come_before_the_users(site, monkeypatch):
    site.install("dist-a", {PROCESSOR: {"p": "h_lp:Good"}}, h_lp=LOGITS)
    monkeypatch.setenv("VLLM_PLUGINS", "")
    good = load_logits_processors()[0]
    assert [cls.__qualname__ for cls in load_logits_processors(["h_lp:Good.Inner", good])] == [
        "Good",
        "Good.Inner",
        "Good",
    ]


@pytest.mark.parametrize("item", ["h_lp3.Good", "h_lp3:Good:x", "Good", ""])
def test_a_logits_processor_string_needs_one_colon(site, item):
    with pytest.raises(ConfigError, match="is no reference to a class. Write 'module:Class'"):
        load_logits_processors([item])


def test_logits_processors_must_load_and_fit(site):
    site.install("dist-x", h_lp4=LOGITS)
    for item, error in [
        ("no_such_module:X", Broken),
        ("h_lp4:Missing", Broken),
        ("h_lp4:Wrong", Incompatible),
        (int, Incompatible),
    ]:
        with pytest.raises(error):
            load_logits_processors([item])
    site.install("dist-a", {PROCESSOR: {"p": "h_lp4:Wrong"}})
    with pytest.raises(Incompatible, match="Logits processor 'p' \\(dist-a 1.0\\) is class h_lp4.Wrong"):
        load_logits_processors()
    site.install("dist-b", {PROCESSOR: {"o": "no_such_module:X"}})
    with pytest.raises(Broken):
        load_logits_processors()
