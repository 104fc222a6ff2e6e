"""Plugins as users meet them: wheels built here, installed into a folder, and loaded by real child processes."""

import json
import os
import subprocess
import sys
import zipfile

import pytest

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "{version}"
{entry_points}
"""
GOOD = {
    "vllm.general_plugins": {"ta_general": "general:register"},
    "vllm.platform_plugins": {"ta_platform": "probe:probe"},
    "vllm.stat_logger_plugins": {"ta_stats": "stats:Stats"},
    "vllm.io_processor_plugins": {"ta_io": "io_entry:entry"},
    "vllm.endpoint_plugins": {"ta_endpoint": "endpoint:make"},
    "vllm.logits_processors": {"ta_logits": "logits:Processor"},
    "modulm.kernels": {"ta_kernels": "kernels:Kernels"},
    "modulm.tool_parsers": {"ta_parser": "parser:Parser"},
}
GOOD_FILES = {
    "general": """
from modulm.plugins.models import ModelRegistry
from modulm.plugins.registry import registry
def register():
    ModelRegistry.register_model("ThrowawayForCausalLM", "throwaway.model:Model")
    registry("modulm.tool_parsers").register("imperative", "throwaway.parser.Parser")
""",
    "probe": "def probe(): return 'throwaway.device.Device'\n",
    "device": """
from modulm.interfaces.platform import Platform
class Device(Platform):
    name = device_type = "throwaway"
    def device(self, index=0): ...
    def available_memory_bytes(self, index=0): return 1
    def total_memory_bytes(self, index=0): return 1
""",
    "stats": """
from modulm.interfaces.metrics import StatLoggerBase
class Stats(StatLoggerBase):
    def __init__(self, config, engine_index=0): ...
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
    def log_engine_initialized(self): ...
""",
    "io_entry": "def entry(): return 'throwaway.io_class.Processor'\n",
    "io_class": """
from modulm.interfaces.io_processor import IOProcessor
class Processor(IOProcessor):
    def pre_process(self, prompt, request_id=None, **kwargs): ...
    def post_process(self, model_output, request_id=None, **kwargs): ...
""",
    "endpoint": """
class make:
    name, required_tasks = "ta", None
    def attach_router(self, app): ...
    async def init_state(self, engine_client, state, args): ...
""",
    "logits": """
from modulm.interfaces.logits import LogitsProcessor
class Processor(LogitsProcessor):
    def __init__(self, config, device, is_pin_memory): ...
    def apply(self, logits): return logits
    def is_argmax_invariant(self): return True
    def update_state(self, batch_update): ...
""",
    "kernels": """
from modulm.interfaces.kernels import KernelProvider
class Kernels(KernelProvider):
    name = "ta_kernels"
    def supports(self, op, weight, device_type): ...
    def pack(self, weight, device, dtype): ...
""",
    "parser": """
from modulm.interfaces.parsers import ToolParser
class Parser(ToolParser):
    def push(self, text, token_ids): ...
    def finish(self, finish_reason): ...
""",
    "model": """
class Model:
    def __init__(self, config): ...
    def forward(self, token_ids, batch): ...
    def compute_logits(self, hidden): ...
""",
}
ALL = {"general", "platform", "stats", "io", "endpoint", "logits", "kernels", "parser"}
BAD = {
    "vllm.general_plugins": {"bad_import": "missing:f", "bad_half": "bad:half", "bad_type": "bad:TEXT"},
    "vllm.platform_plugins": {"bad_probe": "bad:probe"},
    "vllm.stat_logger_plugins": {"bad_stats": "bad:function"},
    "modulm.kernels": {"bad_kernels": "bad:function"},
}
BAD_FILES = {
    "bad": """
from modulm.plugins.registry import registry
TEXT = "text"
def function(): ...
def probe(): raise OSError("driver is missing")
def half():
    registry("modulm.tool_parsers").register("half_way", "m:P")
    raise ValueError("raised half-way")
"""
}
PROLOGUE = """
import json, sys
from modulm.plugins.bootstrap import bootstrap, load_records
from modulm.plugins.registry import registry
def mine(): return sorted(name.partition(".")[2] for name in sys.modules if name.startswith("throwaway."))
def states(): return {r.name: r.state for r in load_records() if r.distribution.startswith("throwaway")}
"""


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Build the wheels with the interpreter's own hatchling, and install each into a folder of its own."""
    packages = {
        "good": ("throwaway", "1.2.3", GOOD, GOOD_FILES),
        "bad": ("throwaway-bad", "0.1", BAD, BAD_FILES),
        "twin": ("throwaway-twin", "9", {"vllm.general_plugins": GOOD["vllm.general_plugins"],
                                         "modulm.kernels": GOOD["modulm.kernels"]}, GOOD_FILES),
    }  # fmt: skip
    return {key: build(tmp_path_factory.mktemp(key), *package) for key, package in packages.items()}


def build(folder, name, version, entries, files):
    module = name.replace("-", "_")
    tables = []
    for group, names in entries.items():
        tables += [
            f'[project.entry-points."{group}"]',
            *(f'{key} = "{module}.{where}"' for key, where in names.items()),
        ]
    (folder / module).mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name=name, version=version, entry_points="\n".join(tables)))
    for file, text in {"__init__": "", **files}.items():
        (folder / module / f"{file}.py").write_text(text.replace("throwaway.", f"{module}."))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:  # a pure wheel is installed by unpacking it
        archive.extractall(folder / "site")
    return folder / "site"


def child(folders, code, script=None, **variables):
    """Run code in a new process that finds the installed folders; return (the JSON it printed, its stderr, status)."""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("VLLM_PLUGINS", "MODULM_STRICT_PLUGINS", "VLLM_TARGET_DEVICE")
    }
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, folders)), **variables}
    where = ["-c", PROLOGUE + code]
    if script:
        script.write_text(PROLOGUE + code)
        where = [str(script)]
    done = subprocess.run(
        [sys.executable, *where], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return (json.loads(done.stdout) if done.stdout else None), done.stderr, done.returncode


def ask(folders, expression, **variables):
    """Bootstrap in a child and return an expression's value; the child must succeed."""
    answer, stderr, status = child(folders, f"bootstrap()\nprint(json.dumps({expression}))", **variables)
    assert status == 0, stderr
    return answer, stderr


def test_the_general_plugin_loads_in_every_process_and_nothing_else_does(sites, tmp_path):
    code = """
import multiprocessing, subprocess
def report(queue):
    bootstrap()
    bootstrap()
    record = next(record for record in load_records() if record.name == "ta_general")
    queue.put((mine(), record.state, record.registered, "ThrowawayForCausalLM" in registry("modulm.models").references))
if __name__ == "__main__":
    import queue
    answers, here = {}, queue.SimpleQueue()
    for method in ("spawn", "fork", "forkserver"):  # fork comes before the parent has loaded anything, and after
        context = multiprocessing.get_context(method)
        for moment in ("early", "late"):
            if moment == "late":
                bootstrap()
            there = context.Queue()
            process = context.Process(target=report, args=(there,))
            process.start()
            answers[f"{method} {moment}"] = there.get(timeout=30)
            process.join()
    report(here)
    answers["parent"] = here.get()
    print(json.dumps(answers))
"""
    answers, stderr, status = child([sites["good"]], code, tmp_path / "processes.py")
    assert status == 0, stderr
    registered = ["modulm.models:ThrowawayForCausalLM", "modulm.tool_parsers:imperative"]
    assert len(answers) == 7
    for where, (modules, state, done, known) in answers.items():
        assert (modules, state, sorted(done), known) == (["general"], "loaded", registered, True), where


def test_each_hook_loads_through_its_own_door(sites):
    code = """
from modulm.plugins import hooks
from modulm.plugins.platforms import current_platform
bootstrap()
seen, answers = set(mine()), {}
def door(name, call):
    value = call()
    answers[name] = [value, sorted(set(mine()) - seen)]
    seen.update(mine())
door("platform", lambda: current_platform().name)
others = "modulm_metrics_prometheus."  # installed with the workspace
loggers = lambda: [cls for _, cls in hooks.load_stat_loggers() if not cls.__module__.startswith(others)]
door("stats", lambda: [cls.__name__ for cls in loggers()])
door("io", lambda: hooks.load_io_processor("ta_io").__name__)
door("endpoint", lambda: [plugin.name for plugin in hooks.load_endpoint_plugins(["generate"])])
door("logits", lambda: [cls.__name__ for cls in hooks.load_logits_processors([])])
door("kernels", lambda: registry("modulm.kernels").get("ta_kernels").__name__)
door("parser", lambda: [registry("modulm.tool_parsers").get(name).__name__ for name in ("ta_parser", "imperative")])
door("model", lambda: registry("modulm.models").get("ThrowawayForCausalLM").__name__)
answers["torch"] = "torch" in sys.modules
answers["states"] = states()
print(json.dumps(answers))
"""
    answers, stderr, status = child([sites["good"]], code, VLLM_PLUGINS="+ta_endpoint")
    assert status == 0, stderr
    assert set(answers.pop("states").values()) == {"loaded"}
    assert answers == {
        "platform": ["throwaway", ["device", "probe"]],
        "stats": [["Stats"], ["stats"]],
        "io": ["Processor", ["io_class", "io_entry"]],
        "endpoint": [["ta"], ["endpoint"]],
        "logits": [["Processor"], ["logits"]],
        "kernels": ["Kernels", ["kernels"]],
        "parser": [["Parser", "Parser"], ["parser"]],
        "model": ["Model", ["model"]],
        "torch": False,
    }


@pytest.mark.parametrize(
    ("text", "on"),
    [
        (None, ALL - {"endpoint"}),
        ("", {"logits"}),
        (" ta_general , ta_kernels", {"general", "kernels", "logits"}),
        ("throwaway", ALL),
        ("throwaway:ta_io", {"io", "logits"}),
        ("+ta_endpoint", ALL),
    ],
)
def test_vllm_plugins_filters(sites, text, on):
    variables = {} if text is None else {"VLLM_PLUGINS": text}
    found, stderr = ask([sites["good"]], "states()", **variables)
    assert {name.removeprefix("ta_") for name, state in found.items() if state in ("available", "loaded")} == on
    assert found["ta_endpoint"] in (["available"] if "endpoint" in on else ["needs naming"])
    assert ("ta_kernels (modulm.kernels, throwaway 1.2.3)" in stderr) == ("kernels" not in on)
    assert ("turns off" in stderr) == (text is not None and not text.startswith("+"))


def test_what_is_turned_off_is_not_loaded(sites):
    code = """
from modulm.plugins import hooks
bootstrap()
answer = [hooks.load_stat_loggers(), hooks.load_endpoint_plugins(None), len(hooks.load_logits_processors([])), mine()]
try:
    registry("modulm.kernels").get("ta_kernels")
except Exception as error:
    answer.append(f"{type(error).__name__}: {error}")
print(json.dumps(answer))
"""
    answer, stderr, status = child([sites["good"]], code, VLLM_PLUGINS="")
    assert status == 0, stderr
    assert answer[:4] == [[], [], 1, ["logits"]]
    assert answer[4].startswith("ConfigError: Kernel provider 'ta_kernels' comes with throwaway 1.2.3 and is kept out")


def test_a_name_that_matches_nothing(sites):
    _, stderr = ask([sites["good"]], "None", VLLM_PLUGINS="ta_generl")
    assert "VLLM_PLUGINS names 'ta_generl', but no installed package provides a plugin of that name." in stderr
    assert "Did you mean 'ta_general'?" in stderr and "ta_general (vllm.general_plugins, throwaway 1.2.3)" in stderr


def test_failures_are_reported_and_the_others_go_on(sites):
    expression = "[states(), registry('modulm.tool_parsers').names()]"
    (found, parsers), stderr = ask([sites["good"], sites["bad"]], expression)
    assert {name: found[name] for name in ("ta_general", "bad_import", "bad_half", "bad_type")} == {
        "ta_general": "loaded", "bad_import": "broken", "bad_half": "broken", "bad_type": "broken",
    }  # fmt: skip
    assert "imperative" in parsers and "half_way" not in parsers
    for message in (
        "'bad_import' (throwaway-bad 0.1) is installed but broken: loading 'throwaway_bad.missing:f' raised "
        "ModuleNotFoundError: No module named 'throwaway_bad.missing'.",
        "'bad_half' (throwaway-bad 0.1) is installed but broken: calling it raised ValueError: raised half-way.",
        "'bad_type' (throwaway-bad 0.1) is an object of type str, but must be callable without arguments.",
    ):
        assert f"General plugin {message}" in stderr
    assert "Traceback" in stderr and "MODULM_STRICT_PLUGINS=1 makes this an error." in stderr


def raised(folders, call, **variables):
    code = f"""
from modulm.plugins import hooks
from modulm.plugins.platforms import current_platform
try:
    {call}
except Exception as error:
    print(json.dumps([type(error).__name__, str(error), error.__cause__ and type(error.__cause__).__name__]))
"""
    answer, stderr, status = child(folders, code, **variables)
    assert status == 0 and answer, stderr
    return answer


@pytest.mark.parametrize(
    ("call", "kind", "words", "cause"),
    [
        ("hooks.load_stat_loggers()", "Incompatible", "'bad_stats' (throwaway-bad 0.1) is an object of type", None),
        ("registry('modulm.kernels').get('bad_kernels')", "Incompatible", "must be a class that derives from", None),
        ("current_platform('bad_probe')", "Broken", "calling it raised OSError: driver is missing", "OSError"),
    ],
)  # fmt: skip
def test_what_was_asked_for_and_fails_is_an_error(sites, call, kind, words, cause):
    found = raised([sites["good"], sites["bad"]], call)
    assert (found[0], found[2]) == (kind, cause) and words in found[1]


def test_a_failing_probe_is_a_warning_and_the_active_platform_serves(sites):
    code = "from modulm.plugins.platforms import current_platform\nprint(json.dumps(current_platform().name))"
    answer, stderr, status = child([sites["good"], sites["bad"]], code)
    assert (answer, status) == ("throwaway", 0)
    assert "WARNING" in stderr and "driver is missing" in stderr and "Traceback" in stderr


def test_strict_makes_the_first_failure_an_error(sites):
    kind, text, cause = raised([sites["good"], sites["bad"]], "bootstrap()", MODULM_STRICT_PLUGINS="1")
    assert (kind, cause) == ("Broken", "ValueError") and "bad_half" in text


def test_one_name_from_two_packages(sites):
    both = [sites["good"], sites["twin"]]
    expression = "[[r.distribution, r.state] for r in load_records() if r.name == 'ta_general']"
    found, stderr = ask(both, expression)
    assert found == [["throwaway", "shadowed"], ["throwaway-twin", "shadowed"]]
    message = "'ta_general' comes from 2 packages: throwaway 1.2.3 (throwaway.general:register) and throwaway-twin 9 ("
    assert message in stderr
    kind, text, _ = raised(both, "bootstrap()", VLLM_PLUGINS="ta_general")
    assert kind == "Incompatible" and message in text and "+throwaway:ta_general" in text
    kind, text, _ = raised(both, "registry('modulm.kernels').get('ta_kernels')")
    assert kind == "Incompatible" and "'throwaway:ta_kernels' or 'throwaway-twin:ta_kernels'" in text
    found, stderr = ask(both, expression, VLLM_PLUGINS="+throwaway-twin:ta_general")
    assert found == [["throwaway", "shadowed"], ["throwaway-twin", "loaded"]]
    chosen, _ = ask(both, "registry('modulm.kernels').get('throwaway-twin:ta_kernels').__module__")
    assert chosen == "throwaway_twin.kernels"


def test_the_list_shows_all_of_it_without_importing_any(sites):
    code = """
from modulm.cli import main
status = main(["plugins", "list", "--json"])
assert not mine() and "torch" not in sys.modules and status == 1
"""
    listed, stderr, status = child([sites["good"], sites["bad"], sites["twin"]], code)
    assert status == 0, stderr
    found = {(row["name"], row["distribution"]): row["state"] for row in listed}
    assert found["ta_general", "throwaway-twin"] == "shadowed" and found["ta_endpoint", "throwaway"] == "needs naming"
    assert found["bad_half", "throwaway-bad"] == "available" and found["torch", "modulm-core"] == "built in"
    assert "comes from 2 packages" in stderr
