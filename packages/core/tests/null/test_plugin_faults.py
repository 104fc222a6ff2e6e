"""The table of tools/failures.toml, cell by cell: a plugin with one fault is installed beside one without, its group's
door is opened as the engine does, and what became of both is compared with what the table promises.

Cells that need an engine that computes are in tests/cpu/test_plugin_faults_engine.py.
"""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import FastAPI

from modulm.errors import PluginError
from modulm.frontend.stat_loggers import StatLoggers
from modulm.interfaces.attention import AttentionSpec
from modulm.interfaces.metrics import LoggedCache, LoggedConfig, LoggedModel
from modulm.plugins import builtin, discovery, watch
from modulm.plugins.bootstrap import bootstrap
from modulm.plugins.choose import choose
from modulm.plugins.hooks import load_io_processor, load_logits_processors
from modulm.plugins.platforms import current_platform
from modulm.plugins.registry import registry
from modulm.resolve import _serves, resolve
from modulm.server.endpoints import attach
from modulm.types import EngineStats, IterationStats, PrefixCacheStats, PromptTokenStats, SchedulerStats

TABLE = tomllib.loads((Path(__file__).parents[4] / "tools/failures.toml").read_text())
MODELS, ATTENTION = "modulm.models", "modulm.attention"
GROUPS = {
    "general": "vllm.general_plugins",
    "platform": "vllm.platform_plugins",
    "stats": "vllm.stat_logger_plugins",
    "io": "vllm.io_processor_plugins",
    "endpoint": "vllm.endpoint_plugins",
    "logits": "vllm.logits_processors",
    "family": ATTENTION,
}
ENGINE_CELLS = {("logits", kind) for kind in ("call-raises", "call-exits", "wrong-answer", "use-raises")}
ENGINE_CELLS |= {("family", "use-raises")}
TEXTS = {
    "general": """
from modulm.plugins.registry import registry
def entry(SIGNATURE):
    CALL
    registry("modulm.models").register("model of NAME", "TARGET")
    return ANSWER
""",
    "platform": """
from modulm.interfaces.platform import Platform
class Device(Platform):
    name = device_type = "NAME"
    def device(self, SIGNATURE): ...
    def available_memory_bytes(self): return 1
    def total_memory_bytes(self, index=0): return 1
    def check_and_update_config(self, config): USE
def entry():
    CALL
    return ANSWER or __name__ + ".Device"
""",
    "stats": """
from modulm.interfaces.metrics import StatLoggerBase
class entry(StatLoggerBase):
    def __init__(self, vllm_config, engine_index=0): CALL
    def record(self, scheduler_stats, iteration_stats, SIGNATURE): USE
    def log_engine_initialized(self): ...
    def routes(self): return ANSWER or ()
""",
    "io": """
from modulm.interfaces.io_processor import IOProcessor
class Processor(IOProcessor):
    def pre_process(self, prompt, request_id=None, **kwargs): ...
    def post_process(self, model_output, SIGNATURE): ...
def entry():
    CALL
    return ANSWER or __name__ + ".Processor"
""",
    "endpoint": """
class Plugin:
    name, required_tasks = "NAME", None
    def attach_router(self, app): USE
    async def init_state(self, engine_client, state, args, SIGNATURE): ...
def entry():
    CALL
    return ANSWER or Plugin()
""",
    "logits": """
from modulm.interfaces.logits import LogitsProcessor
class entry(LogitsProcessor):
    def __init__(self, config, device, is_pin_memory): ...
    def apply(self, logits): ...
    def is_argmax_invariant(self): return True
    def update_state(self, batch_update, SIGNATURE): ...
""",
    "family": """
from modulm.interfaces.attention import AttentionBackend
from modulm.interfaces.support import Accepted
class entry(AttentionBackend):
    name = "NAME"
    @classmethod
    def supports(cls, spec):
        CALL
        return ANSWER or Accepted()
    @classmethod
    def kv_cache_shape(cls, num_blocks, block_size, num_kv_heads, head_size): ...
    def plan(self, layout, device, SIGNATURE): ...
    def forward(self, spec, query, key, value, kv_cache, metadata): ...
""",
}
MARKS = {"SIGNATURE": "", "CALL": "pass", "ANSWER": "None", "USE": "pass", "TARGET": "site_builtin:Model"}
PATCH = "import modulm.plugins.policy as policy\nbefore = policy.no_such_name\npolicy.no_such_name = None\n"
FAULTS = {
    "import-raises": {"TOP": "raise RuntimeError('boom')"},
    "import-exits": {"TOP": "raise SystemExit(3)"},
    "name-missing": {"END": "del entry"},
    "patches-missing": {"TOP": PATCH},
    "wrong-version": {"TOP": "raise SystemExit('imported')"},
    "wrong-type": {"END": "entry = 'text'"},
    "wrong-signature": {"SIGNATURE": "extra_one, extra_two"},
    "call-raises": {"CALL": "raise RuntimeError('boom')"},
    "call-exits": {"CALL": "raise SystemExit(3)"},
    "wrong-answer": {"ANSWER": "3"},
    "blocks": {"TOP": "import time\ntime.sleep(0.1)", "CALL": "import time; time.sleep(0.1)"},
    "prints": {"TOP": "print('it prints')", "CALL": "print('it prints')"},
    "use-raises": {"USE": "raise RuntimeError('boom')", "TARGET": "no_such_module:X"},
}
SAYS = {
    "import-raises": "RuntimeError: boom", "import-exits": "SystemExit: 3", "name-missing": "has no attribute 'entry'",
    "patches-missing": "has no attribute 'no_such_name'", "wrong-version": "written for version 99",
    "wrong-type": "an object of type str", "wrong-signature": "extra_one", "call-raises": "boom",
    "call-exits": "SystemExit", "wrong-answer": "int", "use-raises": "",
}  # fmt: skip


def text(group, name, **marks):
    marks = {"TOP": "", "END": "", **MARKS, "NAME": name, **marks}
    whole = f"TOP\n{TEXTS[group]}\nEND\n"
    for mark, value in marks.items():
        whole = whole.replace(mark, value)
    return whole


@pytest.fixture
def built_in(site, monkeypatch):
    """Stand-ins for core's own parts, without torch."""
    cpu = text("platform", "cpu", END="no_device = bool")
    torch = text("family", "torch")
    site.install("core-stand-in", f_cpu=cpu, f_torch=torch)
    monkeypatch.setitem(builtin.PLATFORMS, "cpu", "f_cpu:Device")
    monkeypatch.setitem(builtin.PROBES, "cuda", "f_cpu:no_device")
    monkeypatch.setitem(builtin.BUILTIN, ATTENTION, {"torch": "f_torch:entry"})
    return site


def stat_config():
    model = LoggedModel(model="m", served_model_name="m", max_model_len=8)
    cache = LoggedCache(
        block_size=16, cache_dtype="auto", enable_prefix_caching=True, gpu_memory_utilization=0.5,
        kv_cache_memory_bytes=None, num_gpu_blocks=None,
    )  # fmt: skip
    return LoggedConfig(model_config=model, cache_config=cache)


# What an engine does with a group, until the plugin has been used; each returns the names of those that serve.


def open_general(name):
    served = [each for each in registry(MODELS).names() if each.startswith("model of")]
    return [each.removeprefix("model of ") for each in served]


def open_platform(name):
    platform = current_platform()
    with pytest.raises(Exception, match="boom|no/such"):  # what the checkpoint is, it learns after the platform
        resolve(SimpleNamespace(device="auto", cpu_threads=None, model="no/such", revision=None, download_dir=None))
    return [platform.name, "good"]


def open_stats(name):
    loggers = StatLoggers(stat_config(), enable_default_loggers=False)
    stats = EngineStats(
        scheduler=SchedulerStats(prefix_cache_stats=PrefixCacheStats()),
        iteration=IterationStats(prompt_token_stats=PromptTokenStats()),
    )
    loggers.routes()
    loggers.record(stats)
    loggers.close()
    return [type(each.per_engine_stat_loggers[0]).__module__.removeprefix("f_") for each in loggers.stat_loggers]


def open_io(name):
    load_io_processor("good")
    return [load_io_processor(name).__module__.removeprefix("f_"), "good"]


def open_endpoint(name):
    app = FastAPI()
    attach(app)
    return [plugin.name for plugin in app.state.endpoint_plugins]


def open_logits(name):
    return [each.__module__.removeprefix("f_") for each in load_logits_processors()]


def open_family(name):
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_size=8, scale=1.0)
    choice = choose(ATTENTION, None, registry(ATTENTION).names(), lambda cls: _serves(cls, spec))
    choose(ATTENTION, "good", [], lambda cls: _serves(cls, spec))
    return [choice.name, "good"]


OPEN = {
    "general": open_general, "platform": open_platform, "stats": open_stats, "io": open_io, "endpoint": open_endpoint,
    "logits": open_logits, "family": open_family,
}  # fmt: skip


def ask_by_name(group):
    if group == "platform":
        return current_platform("bad")
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_size=8, scale=1.0)
    return choose(ATTENTION, "bad", [], lambda cls: _serves(cls, spec))


CELLS = [
    (group, kind, outcome)
    for kind, row in TABLE["table"].items()
    for group, outcome in zip(TABLE["groups"], row, strict=True)
    if (group, kind) not in ENGINE_CELLS
]


def test_the_table_has_twelve_kinds_in_six_groups_and_each_cell_a_test():
    assert len(TABLE["faults"]) >= 12 and len(TABLE["groups"]) >= 6
    assert TABLE["table"].keys() == TABLE["faults"].keys() == FAULTS.keys() and TABLE["groups"].keys() == GROUPS.keys()
    assert set(TABLE["outcomes"]) == {outcome for row in TABLE["table"].values() for outcome in row}


@pytest.mark.parametrize(("group", "kind", "outcome"), CELLS, ids=[f"{group}-{kind}" for group, kind, _ in CELLS])
def test_cell(built_in, group, kind, outcome, caplog, capsys, monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE_S", (0.03, 0.06))
    monkeypatch.setenv("VLLM_PLUGINS", "+bad,+good")
    stated = {"modulm.interface_versions": {GROUPS[group]: "v99"}} if kind == "wrong-version" else {}
    built_in.install("dist-bad", {GROUPS[group]: {"bad": "f_bad:entry"}, **stated},
                     f_bad=text(group, "bad", **FAULTS[kind]))  # fmt: skip
    if group != "platform":  # of which only one can be
        built_in.install("dist-good", {GROUPS[group]: {"good": "f_good:entry"}}, f_good=text(group, "good"))
    error, served = None, []
    try:
        bootstrap()
        served = OPEN[group]("bad")
    except PluginError as raised:
        error = raised
    if group == "platform" and kind == "use-raises":
        error = platform_error()
    (record,) = [record for record in discovery.records(GROUPS[group]) if record.name == "bad"]
    warnings = "\n".join(r.getMessage() for r in caplog.records if r.levelname in ("WARNING", "ERROR"))
    out, err = capsys.readouterr()
    assert out == "", "standard output is the user's"
    CHECKS[outcome](group, kind, record, served, error, warnings, err)


def platform_error():
    with pytest.raises(PluginError) as raised:
        resolve(SimpleNamespace(device="auto"))
    return raised.value


def is_left_out(group, kind, record, served, error, warnings, err):
    assert error is None and "bad" not in served and {"good", "cpu"} & set(served)
    assert record.state == ("incompatible" if kind == "wrong-version" else "broken")
    assert "'bad'" in warnings and SAYS[kind] in warnings and SAYS[kind] in record.reason
    if group in ("platform", "family"):
        with pytest.raises(PluginError, match="'bad'") as raised:
            ask_by_name(group)
        assert SAYS[kind] in str(raised.value)


def stops(group, kind, record, served, error, warnings, err):
    assert "'bad'" in str(error) and SAYS[kind] in str(error)


def fails_who_asks(group, kind, record, served, error, warnings, err):
    if group == "general":  # it is what it registered that fails
        assert error is None and set(served) == {"bad", "good"}
        assert registry(MODELS).get("model of good").__name__ == "Model"
        with pytest.raises(PluginError, match="model of bad.*registered by dist-bad:bad.*no_such_module"):
            registry(MODELS).get("model of bad")
    else:
        assert "'bad'" in str(error) and SAYS[kind] in str(error)


def is_switched_off(group, kind, record, served, error, warnings, err):
    assert error is None and set(served) == {"bad", "good"}
    assert record.state == "broken" and "switched off" in record.reason and "switched off" in warnings
    (good,) = [each for each in discovery.records(GROUPS[group]) if each.name == "good"]
    assert good.state == "loaded"


def serves(group, kind, record, served, error, warnings, err):
    assert error is None and record.state == "loaded" and "bad" in served and {"good", "cpu"} & set(served)


def is_waited_for(group, kind, record, served, error, warnings, err):
    serves(group, kind, record, served, error, warnings, err)
    assert warnings.count("'bad' (dist-bad 1.0)") >= 2 and "f_bad.py:" in warnings


def goes_to_stderr(group, kind, record, served, error, warnings, err):
    serves(group, kind, record, served, error, warnings, err)
    assert "it prints\n" in err


CHECKS = {
    "left-out": is_left_out, "stops": stops, "asker": fails_who_asks, "switched-off": is_switched_off,
    "ignored": serves, "waited": is_waited_for, "stderr": goes_to_stderr, "no-call": serves,
}  # fmt: skip
