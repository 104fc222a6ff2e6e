"""`vllm.plugins`: what VLLM_PLUGINS lets through, for each group as in the contract's table."""

import pytest
from vllm import plugins

GROUPS = {
    "general": plugins.DEFAULT_PLUGINS_GROUP,
    "platform": plugins.PLATFORM_PLUGINS_GROUP,
    "io_processor": plugins.IO_PROCESSOR_PLUGINS_GROUP,
    "stat_logger": plugins.STAT_LOGGER_PLUGINS_GROUP,
    "endpoint": plugins.ENDPOINT_PLUGINS_GROUP,
    "logits": "vllm.logits_processors",
}


@pytest.mark.parametrize(
    ("text", "all_of", "one_of"),
    [
        (None, {"general", "platform", "io_processor", "stat_logger", "logits"}, set()),
        ("", {"logits"}, set()),
        ("one", {"logits"}, set(GROUPS) - {"logits"}),
        ("one,two", set(GROUPS), set()),
    ],
)
def test_the_list_allows(site, monkeypatch, text, all_of, one_of):
    if text is not None:
        monkeypatch.setenv("VLLM_PLUGINS", text)
    for group in GROUPS.values():
        names = {name: f"funcs:{name}" for name in ("one", "two")}
        site.install(group, names, funcs="one = two = lambda: None")
    for kind, group in GROUPS.items():
        want = ["one", "two"] if kind in all_of else ["one"] if kind in one_of else []
        assert list(plugins.load_plugins_by_group(group)) == want, kind


def test_what_fails_to_import_is_skipped_and_told(site, caplog):
    site.install(plugins.DEFAULT_PLUGINS_GROUP, {"bad": "gone:f", "good": "fine:f"}, fine="f = lambda: 7")
    found = plugins.load_plugins_by_group(plugins.DEFAULT_PLUGINS_GROUP)
    assert {name: function() for name, function in found.items()} == {"good": 7}
    assert "'bad' (made-up-0 1.0) is installed but broken" in caplog.text


def test_general_plugins_run_once(site):
    site.install(
        plugins.DEFAULT_PLUGINS_GROUP, {"count": "counter:run"}, counter="runs = []\nrun = lambda: runs.append(1)"
    )
    plugins.load_general_plugins()
    plugins.load_general_plugins()
    import counter

    assert counter.runs == [1]


def test_the_environment_is_read_when_it_is_asked_for(monkeypatch):
    from vllm import envs

    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert envs.VLLM_PLUGINS is None and not envs.is_set("VLLM_PLUGINS")
    for text, want in [("", [""]), ("a, b", ["a", " b"])]:
        monkeypatch.setenv("VLLM_PLUGINS", text)
        assert want == envs.VLLM_PLUGINS
    with pytest.raises(AttributeError, match="VLLM_USE_RAY_SPMD_WORKER is not here.*VLLM_TARGET_DEVICE"):
        _ = envs.VLLM_USE_RAY_SPMD_WORKER


def test_io_processors_are_found_by_name_and_made(site):
    text = """
from vllm.plugins.io_processors.interface import IOProcessor
class Upper(IOProcessor[str, str]):
    def pre_process(self, prompt, request_id=None, **kwargs): return prompt.upper()
    def post_process(self, model_output, request_id=None, **kwargs): return "".join(model_output)
"""
    entries = {"upper": "io_plugin:entry", "absent": "io_plugin:absent"}
    code = "entry = lambda: 'io_class.Upper'\nabsent = lambda: None"
    site.install(plugins.IO_PROCESSOR_PLUGINS_GROUP, entries, io_plugin=code, io_class=text)
    from vllm.config import ModelConfig, VllmConfig
    from vllm.plugins.io_processors import get_io_processor, has_io_processor

    plain = VllmConfig()
    named = VllmConfig(model_config=ModelConfig(read_config=lambda: {"io_processor_plugin": "upper"}))
    assert not has_io_processor(plain) and get_io_processor(plain) is None
    for made in (get_io_processor(plain, "renderer", "upper"), get_io_processor(named, "renderer")):
        assert (made.pre_process("a"), made.post_process(["x", "y"])) == ("A", "xy")
        assert type(made).__name__ == "Upper" and made.vllm_config in (plain, named)
    for name, words in [("absent", "does not work in this environment"), ("uper", "Did you mean 'upper'")]:
        with pytest.raises(ValueError, match=words):
            get_io_processor(plain, None, name)
