import pytest

from modulm.errors import Broken, ConfigError, Incompatible, NotInstalled, UnknownName
from modulm.plugins import builtin, discovery, known
from modulm.plugins.records import LoadRecord
from modulm.plugins.registry import registry, transaction

PARSERS = "modulm.tool_parsers"
EXECUTORS = "modulm.executors"
EXECUTOR = """
from modulm.interfaces.executor import Executor
class Good(Executor):
    def kv_layout(self): ...
    def execute(self, plan): ...
    def shutdown(self): ...
class Inner(Good): ...
Good.Inner = Inner
class Wrong: ...
function = lambda: None
"""


def plugin(name, distribution="dist-a"):
    return LoadRecord(group="vllm.general_plugins", name=name, value="m:f", distribution=distribution, version="1.0")


def test_sources_in_order(site, monkeypatch):
    site.install("dist-a", {EXECUTORS: {"mine": "execs:Good", "inprocess": "execs:Wrong"}}, execs=EXECUTOR)
    monkeypatch.setitem(builtin.BUILTIN, EXECUTORS, {"inprocess": "execs:Good"})
    site.forget()
    executors = registry(EXECUTORS)
    assert executors.names() == ["inprocess", "mine"]
    assert "mine" in executors and "dist-a:mine" not in executors and "other" not in executors
    assert executors.get("inprocess").__name__ == "Good", "the built-in one is never hidden"
    with pytest.raises(Incompatible):
        executors.get("dist-a:inprocess")
    executors.register("mine", "execs:Good.Inner", override=True)
    assert executors.get("mine").__name__ == "Inner"
    assert executors.get("modulm-core:inprocess").__name__ == "Good"
    assert executors.references == {"inprocess": "execs:Good", "mine": "execs:Good.Inner"}
    with pytest.raises(TypeError):
        executors.references["x"] = "y"


@pytest.mark.parametrize("reference", ["execs:Good", "execs.Good", "execs:Good [extra]", "execs:Good.Inner"])
def test_both_forms_of_reference(site, reference):
    site.install("dist-a", execs=EXECUTOR)
    registry(EXECUTORS).register("x", reference)
    assert registry(EXECUTORS).get("x").__name__ in ("Good", "Inner")


@pytest.mark.parametrize("reference", ["", "nodot", ":x", "m:", "m:a:b", ".x", "m..x", "m:a..b"])
def test_what_is_no_reference(site, reference):
    with pytest.raises(ConfigError, match="is no reference to an object"):
        registry(EXECUTORS).register("x", reference)


def test_an_import_error_inside_a_plugin_is_never_an_unknown_name(site):
    site.install(
        "dist-a", {EXECUTORS: {"dep": "needs_dep:X", "gone": "nowhere:X", "attr": "execs:Missing", "exit": "exits:X"}},
        execs=EXECUTOR, needs_dep="import not_installed_dependency", exits="raise SystemExit(3)",
    )  # fmt: skip
    for name, cause in [("dep", ModuleNotFoundError), ("gone", ModuleNotFoundError), ("attr", AttributeError),
                        ("exit", SystemExit)]:  # fmt: skip
        with pytest.raises(Broken, match=f"Executor '{name}' \\(dist-a 1.0\\) is installed but broken") as caught:
            registry(EXECUTORS).get(name)
        assert isinstance(caught.value.__cause__, cause)
    assert {r.state for r in discovery.records(EXECUTORS)} == {"broken"}
    assert "not_installed_dependency" in discovery.find(EXECUTORS, "dep").reason


def test_a_broken_plugin_can_be_tried_again(site):
    site.install("dist-a", {EXECUTORS: {"x": "late:Good"}})
    with pytest.raises(Broken):
        registry(EXECUTORS).get("x")
    (site.folder / "late.py").write_text(EXECUTOR)
    assert registry(EXECUTORS).get("x").__name__ == "Good"
    record = discovery.find(EXECUTORS, "x")
    assert record.state == "loaded" and record.reason == "" and record.seconds > 0


@pytest.mark.parametrize("name", ["Wrong", "function"])
def test_wrong_type(site, name):
    site.install("dist-a", {EXECUTORS: {"x": f"execs:{name}"}}, execs=EXECUTOR)
    with pytest.raises(Incompatible, match=r"must be a class that derives from modulm\.interfaces\.executor\.Executor"):
        registry(EXECUTORS).get("x")
    assert discovery.find(EXECUTORS, "x").state == "broken"


def test_a_class_for_another_engine_brings_what_stands_for_it(site):
    text = EXECUTOR + "class Foreign:\n    modulm_class = classmethod(lambda cls: {})\n"
    site.install("dist-a", {EXECUTORS: {"x": "execs:Foreign"}}, execs=text.format("Good"), wrong=text.format("Wrong"),
                 sad=text.format("1 / 0"))  # fmt: skip
    assert registry(EXECUTORS).get("x").__name__ == "Good"
    registry(EXECUTORS).register("registered", "execs:Foreign")
    assert registry(EXECUTORS).get("registered").__name__ == "Good"
    registry(EXECUTORS).register("sad", "sad:Foreign")
    with pytest.raises(Broken, match=r"calling its modulm_class\(\) raised ZeroDivisionError"):
        registry(EXECUTORS).get("sad")
    registry(EXECUTORS).register("wrong", "wrong:Foreign")
    with pytest.raises(Incompatible, match=r"class wrong\.Wrong, but must be a class that derives"):
        registry(EXECUTORS).get("wrong")


def test_a_model_needs_two_methods(site):
    site.install("dist-a", {"modulm.models": {"NoLogits": "m_models:NoLogits", "NoClass": "m_models:made"}},
                 m_models="class NoLogits:\n    def __init__(self, config): ...\n"
                          "    def forward(self, token_ids, batch): ...\nclass Ok(NoLogits):\n"
                          "    def compute_logits(self, hidden): ...\nmade = Ok(None)\n")  # fmt: skip
    for name, words in (
        ("NoLogits", "which lacks compute_logits of modulm.interfaces.model.CausalLM"),
        ("NoClass", "must be a class that has what it takes to be modulm.interfaces.model.CausalLM"),
    ):
        with pytest.raises(Incompatible, match=words):
            registry("modulm.models").get(name)
    registry("modulm.models").register("Ok", "m_models:Ok")
    assert registry("modulm.models").get("Ok").__name__ == "Ok"


def test_a_table_of_built_ins_may_itself_be_a_reference(site, monkeypatch):
    site.install("dist-a", m_index="TABLE = {'A': 'site_builtin:Model'}")
    monkeypatch.setitem(builtin.BUILTIN, "modulm.models", "m_index:TABLE")
    assert registry("modulm.models").names() == ["A"]
    assert registry("modulm.models").get("A").__name__ == "Model"


def test_unknown_and_not_installed(site, monkeypatch):
    monkeypatch.setitem(known.KNOWN, PARSERS, {"hermes": "modulm-parsers-more"})
    site.install("dist-a", {PARSERS: {"mistral": "m:P"}})
    parsers = registry(PARSERS)
    with pytest.raises(UnknownName, match="Did you mean 'mistral'"):
        parsers.get("mistrall")
    with pytest.raises(UnknownName, match="Did you mean 'hermes'"):
        parsers.get("herms")
    with pytest.raises(NotInstalled, match="pip install modulm-parsers-more"):
        parsers.get("hermes")
    with pytest.raises(UnknownName):
        parsers.get("dist-x:mistral")


def test_turned_off_is_a_conflict_of_options(site, monkeypatch):
    site.install("dist-a", {PARSERS: {"mistral": "m:P"}})
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    site.forget()
    assert "mistral" not in registry(PARSERS)
    with pytest.raises(ConfigError, match="Add 'mistral' to VLLM_PLUGINS"):
        registry(PARSERS).get("mistral")


def test_unknown_family(site):
    with pytest.raises(ConfigError, match="Did you mean 'modulm.kernels'"):
        registry("modulm.kernel")


def test_replacing_needs_override_and_shows(site, monkeypatch, caplog):
    caplog.set_level("INFO", "modulm")
    site.install("dist-a", {PARSERS: {"declared": "m:P"}})
    monkeypatch.setitem(builtin.BUILTIN, PARSERS, {"native": "m:P"})
    parsers = registry(PARSERS)
    parsers.register("mine", "m:P")
    parsers.register("mine", "m:P")  # the same again is no conflict
    for name in ("mine", "native", "declared"):
        with pytest.raises(Incompatible, match=f"register\\('{name}', ..., override=True\\)"):
            parsers.register(name, "m:Q")
    record = plugin("over", "dist-o")
    with transaction(record):
        for name in ("mine", "native", "declared", "new"):
            parsers.register(name, "m:Q", override=True)
    marked = [f"{PARSERS}:{name} (override)" for name in ("mine", "native", "declared")]
    assert record.registered == [*marked, f"{PARSERS}:new"]
    assert "Tool parser 'native' of modulm-core (built in) is overridden by dist-o:over." in caplog.text


def test_two_plugins_may_not_register_one_name(site):
    first, second = plugin("one"), plugin("two", "dist-b")
    with transaction(first):
        registry(PARSERS).register("x", "m:P")
    with pytest.raises(Incompatible, match="the name is taken by dist-a:one"), transaction(second):
        registry(PARSERS).register("x", "m:Q")
    assert registry(PARSERS).references["x"] == "m:P"


def test_a_plugin_may_register_what_its_own_package_declares(site):
    site.install("dist-a", {PARSERS: {"x": "m:P"}})
    with transaction(plugin("one")):
        registry(PARSERS).register("x", "m:Q")
    assert registry(PARSERS).references["x"] == "m:Q"


def test_a_failed_plugin_leaves_nothing_behind(site):
    parsers, executors = registry(PARSERS), registry(EXECUTORS)
    parsers.register("before", "m:P")
    record = plugin("half")

    def half_way():
        with transaction(record):
            parsers.register("before", "m:Q", override=True)
            parsers.register("before", "m:R", override=True)
            executors.register("new", "m:E")
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError):
        half_way()
    assert parsers.references == {"before": "m:P"} and "new" not in executors and record.registered == []
    assert parsers.registrations()["before"].owner is None


def test_names_must_be_strings(site):
    with pytest.raises(TypeError, match="must be a non-empty string"):
        registry(PARSERS).register(3, "m:P")
