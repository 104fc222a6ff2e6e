"""`modulm plugins doctor` as operators run it: one environment with every illness, and the commands that mend them."""

import shlex

import pytest

GENERAL, PLATFORM, ENDPOINT, STATS = (
    "vllm.general_plugins", "vllm.platform_plugins", "vllm.endpoint_plugins", "vllm.stat_logger_plugins",
)  # fmt: skip
DRAFTERS = "modulm.speculators"
TORCH = "class cuda:\n    is_initialized = staticmethod(lambda: True)\n"
PLATFORM_CLASS = """
from modulm.interfaces.platform import Platform
def probe(): return "{module}.Device"
class Device(Platform):
    name = device_type = "{module}"
    def device(self, index=0): ...
    def available_memory_bytes(self, index=0): return 1
    def total_memory_bytes(self, index=0): return 1
"""
ENDPOINT_CLASS = """
class make:
    name, required_tasks = "{module}", None
    def attach_router(self, app):
        app.add_api_route("{path}", lambda: None, methods=["GET"])
    async def init_state(self, engine_client, state, args): ...
"""
LOGGER = """
from starlette.routing import Route
from modulm.interfaces.metrics import StatLoggerBase
class Stats(StatLoggerBase):
    def __init__(self, config, engine_index=0): ...
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
    def log_engine_initialized(self): ...
    def routes(self): return [Route("/shared", lambda request: None)]
"""
DRAFTER = """
from modulm.interfaces.speculator import Speculator
class P(Speculator):
    name = "p"
    def __init__(self, settings, limits): ...
    def propose(self, sequences): ...
"""
REGISTERS = """
from modulm.plugins.models import ModelRegistry
from modulm.plugins.registry import registry
def register():
    print("noise on standard output")
    ModelRegistry.register_model("TwiceForCausalLM", "pkg:Model")
    registry("modulm.tool_parsers").register("both", "pkg:Parser")  # the second one to do so is refused
"""


@pytest.fixture(scope="module")
def ill(new_site):
    site = new_site()
    general = {
        "imports": "import no_such_library", "exits": "import os; os._exit(3)", "hangs": "import time; time.sleep(60)",
        "sleeps": "import time\ndef f(): time.sleep(0.7)", "torchy": "def f(): import torch",
        "raises": "def f(): raise ValueError('half-way')",
    }  # fmt: skip
    for name, text in general.items():
        site.install(f"dist-{name}", {GENERAL: {name: f"m_{name}:f"}}, **{f"m_{name}": text})
    (site.folder / "torch.py").write_text(TORCH)
    for name in ("regs-a", "regs-b"):
        module = name.replace("-", "_")
        site.install(name, {GENERAL: {module: f"{module}:register"}}, **{module: REGISTERS})
    for module in ("dev_a", "dev_b"):
        site.install(
            f"dist-{module}", {PLATFORM: {module: f"{module}:probe"}}, **{module: PLATFORM_CLASS.format(module=module)}
        )
    for module, path in (("ep_a", "/shared"), ("ep_core", "/health")):
        site.install(
            f"dist-{module}",
            {ENDPOINT: {module: f"{module}:make"}},
            **{module: ENDPOINT_CLASS.format(module=module, path=path)},
        )
    site.install("dist-stats", {STATS: {"stats": "m_stats:Stats"}}, m_stats=LOGGER)
    for name in ("twin-a", "twin-b"):
        site.install(name, {DRAFTERS: {"twin": "m_twin:P"}}, m_twin=DRAFTER)
    site.install("dist-torch", {DRAFTERS: {"fine": "m_fine:P"}}, m_fine=f"import torch{DRAFTER}")
    site.install("dist-gone", {DRAFTERS: {"gone": "m_gone:P"}}, m_gone=DRAFTER)
    (site.folder / "m_gone.py").unlink()
    site.install("dist-lost", {DRAFTERS: {"lost": "m_lost:P"}}, m_lost=DRAFTER, m_helper="")
    (site.folder / "m_helper.py").unlink()
    site.install("dist-old", {DRAFTERS: {"old": "m_old:P", "new": "m_old:P"}}, m_old=DRAFTER)
    old = site.folder / "dist_old.egg-info"
    old.mkdir()
    (old / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: dist-old\nVersion: 0.1\n")
    (old / "entry_points.txt").write_text(f"[{DRAFTERS}]\nold = m_old:P\n")
    needs = site.install("dist-needs", {DRAFTERS: {"needs": "m_needs:P"}}, m_needs=DRAFTER)
    requirements = ["no-such-distribution>=2", "modulm-core>=99", "other>=1; extra == 'x'", "modulm-core>=0.1"]
    (needs / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: dist-needs\nVersion: 1.0\n"
        + "".join(f"Requires-Dist: {r}\n" for r in requirements)
    )
    site.install(
        "dist-future", {DRAFTERS: {"future": "m_future:P"}, "modulm.interface_versions": {DRAFTERS: "v98:v99"}}
    )
    nameless = site.folder / "nameless-1.0.dist-info"
    nameless.mkdir()
    (nameless / "entry_points.txt").write_text(f"[{DRAFTERS}]\nx = m:P\n")
    return site


VLLM_PLUGINS = "+ep_a,+ep_core,+nobody"


@pytest.fixture(scope="module")
def report(ill, command):
    report, stderr, status = command(ill, "doctor", "--json", "--time-limit", "3", VLLM_PLUGINS=VLLM_PLUGINS)
    assert status == 1, stderr
    return report


FINDINGS = {
    ("broken", "dist-imports:imports"): "ModuleNotFoundError: No module named 'no_such_library'",
    ("broken", "dist-exits:exits"): "ends the process that loads it, with status 3",
    ("broken", "dist-hangs:hangs"): "is not loaded after 3 s",
    ("broken", "dist-raises:raises"): "calling it raised ValueError: half-way",
    ("broken", "dist-ep_core:ep_core"): "Route GET /health comes from modulm's own server and from endpoint plugin",
    ("slow", "dist-sleeps:sleeps"): "takes 0.7 s to load. Every process that loads it waits",
    ("slow", "dist-torchy:torchy"): "imports torch and initialises a GPU, so that no process that loads it can fork",
    ("metadata", "dist-gone:gone"): "names the module 'm_gone', of which there is no file",
    ("metadata", "dist-gone"): "has lost 1 of the files it installed, such as m_gone.py",
    ("metadata", "dist-lost"): "has lost 1 of the files it installed, such as m_helper.py",
    ("metadata", "dist-old"): "has left-over metadata in",
    ("metadata", "nameless"): "are passed over: its metadata has no name",
    ("requirement", "dist-needs"): "needs",
    ("version", "dist-future:future"): "it is written for versions 98 to 99 of contract modulm.speculators",
    ("duplicate", "modulm.speculators twin"): "comes from 2 packages: twin-a 1.0",
    ("name", "nobody"): "VLLM_PLUGINS names 'nobody', and no installed package provides a plugin of that name",
    ("platform", PLATFORM): "2 platform plugins are active: 'dev_a' (dist-dev_a 1.0) and 'dev_b' (dist-dev_b 1.0)",
    ("collision", "GET /shared"): "Route 'GET /shared' comes from 'ep_a' (dist-ep_a 1.0) and 'stats' (dist-stats 1.0)",
    ("collision", "modulm.models:TwiceForCausalLM"): "comes from 'regs_a' (regs-a 1.0) and 'regs_b' (regs-b 1.0)",
    ("collision", "modulm.tool_parsers:both"): "Name 'modulm.tool_parsers:both' comes from 'regs_a' (regs-a 1.0) and",
}


@pytest.mark.parametrize(("check", "subject"), FINDINGS)
def test_each_illness_is_found(report, check, subject):
    found = [f for f in report["findings"] if f["check"] == check and subject in f["subject"]]
    assert any(FINDINGS[check, subject] in each["problem"] for each in found), report["findings"]
    assert all(each["mend"] for each in found)


def test_nothing_else_is_found(report):
    expected = set(FINDINGS)
    others = [
        f
        for f in report["findings"]
        if not any(f["check"] == check and subject in f["subject"] for check, subject in expected)
    ]
    assert [f for f in others if "modulm" not in f["subject"]] == []
    needs = sorted(
        f["problem"] for f in report["findings"] if f["check"] == "requirement" and f["subject"] == "dist-needs"
    )
    assert len(needs) == 2 and "modulm-core>=99" in needs[0] and "no-such-distribution is not installed" in needs[1]


def mend(report, check, subject):
    (found,) = [f["mend"] for f in report["findings"] if f["check"] == check and subject in f["subject"]]
    return shlex.split(found)


def test_the_list_shows_what_the_doctor_saw(report, ill, command):
    rows, stderr, status = command(ill, "list", "--json", VLLM_PLUGINS=VLLM_PLUGINS)
    found = {row["name"]: row for row in rows}
    assert status == 1 and "VLLM_PLUGINS names 'nobody'" in stderr
    states = {name: found[name]["state"] for name in ("imports", "gone", "future", "twin", "fine", "ep_a", "dev_a")}
    assert states == {
        "imports": "broken", "gone": "broken", "future": "incompatible", "twin": "shadowed", "fine": "available",
        "ep_a": "available", "dev_a": "available",
    }  # fmt: skip
    assert "as the doctor last saw it" in found["imports"]["reason"]
    assert found["regs_a"]["registered"] == ["modulm.models:TwiceForCausalLM", "modulm.tool_parsers:both"]
    assert (
        found["regs_a"]["processes"] == ["server", "embedder", "engine", "offline"]
        and found["regs_a"]["interface"] == 1
    )


def test_the_commands_mend(report, ill, command):
    """Variables are set as the findings say, files are removed, and the finding is gone; the others stay."""
    variables = {"VLLM_PLUGINS": VLLM_PLUGINS}
    chosen = [
        ("duplicate", "twin"),
        ("platform", PLATFORM),
        ("broken", "dist-raises"),
        ("slow", "dist-sleeps"),
        ("broken", "dist-hangs"),
    ]
    for check, subject in chosen:
        name, _, value = mend(report, check, subject)[-1].partition("=")
        variables[name] = f"{variables.get(name, '')},{value}"
    remove, recursively, path = mend(report, "metadata", "dist-old")
    assert (remove, recursively) == ("rm", "-r") and path == str(ill.folder / "dist_old.egg-info")
    (ill.folder / "dist_old.egg-info").rename(ill.folder / "dist_old.removed")
    after, _, status = command(ill, "doctor", "--json", "--time-limit", "3", **variables)
    (ill.folder / "dist_old.removed").rename(path)
    assert status == 1
    left = {(f["check"], f["subject"]) for f in after["findings"]}
    gone = {(f["check"], f["subject"]) for f in report["findings"]} - left
    assert {subject for _, subject in gone} == {
        "modulm.speculators twin", PLATFORM, "dist-raises:raises", "dist-sleeps:sleeps", "dist-hangs:hangs",
        "dist-old",
    }  # fmt: skip


WELL = """
from modulm.interfaces.speculator import Speculator
class P(Speculator):
    name = "p"
    def __init__(self, settings, limits): ...
    def propose(self, sequences): ...
def f(): ...
"""


@pytest.fixture
def well(new_site):
    site = new_site()
    site.install(
        "dist-well",
        {DRAFTERS: {"well": "m_well:P"}, GENERAL: {"quick": "m_well:f"}},
        m_well=WELL,
    )
    return site


def tried(output):
    return int(output["tried"])


def test_what_is_well_is_not_tried_again_until_it_changes(well, command):
    first, stderr, status = command(well, "doctor", "--json")
    assert (status, first["findings"]) == (0, []), stderr
    second, _, _ = command(well, "doctor", "--json")
    assert tried(first) == first["plugins"] and tried(second) == 0
    (well.folder / "m_well.py").write_text("def f(): raise OSError\n")
    third, _, status = command(well, "doctor", "--json")
    assert status == 1 and tried(third) == 2
    subjects = {each["subject"] for each in third["findings"]}
    assert subjects == {"dist-well:well", "dist-well:quick"}
    fourth, _, _ = command(well, "doctor", "--json")
    assert tried(fourth) == 2, "what is not well is tried each time"
    (well.folder / "m_well.py").write_text(f"{WELL}# mended\n")
    assert command(well, "doctor")[2] == 0


def test_by_metadata_alone(well, command):
    report, _, status = command(well, "doctor", "--json", "--no-import")
    assert (status, tried(report)) == (0, 0)


def test_text(well, command):
    out, _, status = command(well, "doctor", "--fresh")
    assert status == 0 and "all is well" in out
    (well.folder / "m_well.py").write_text("def f(): raise OSError\n")
    out, _, status = command(well, "doctor")
    assert status == 1 and "broken: General plugin 'quick' (dist-well 1.0)" in out
    assert "export MODULM_DISABLE_PLUGINS=dist-well:quick" in out and "2 findings" in out


def test_two_hundred_distributions_and_nothing_is_imported(new_site, command):
    site = new_site()
    for number in range(200):
        name = f"synthetic_{number:03}"
        site.install(name, {GENERAL: {name: f"{name}:f"}}, **{name: "def f(): ..."})
    code = """
import sys
from modulm.cli import main
status = main(sys.argv[1:])
loaded = [name for name in sys.modules if name.startswith("synthetic_") or name in ("torch", "numpy", "asyncio")]
sys.exit(f"imported: {loaded}" if loaded else status)
"""
    lock = str(site.folder / "all.lock")
    for words in (["list"], ["doctor"], ["doctor"], ["lock", lock], ["verify", lock], ["why", "synthetic_007"]):
        out, stderr, status = command(site, "plugins", *words, program=("-c", code))
        assert status == 0, (words, out[-2000:], stderr[-2000:])
        assert "synthetic_007" in out or "distributions are" in out or "all is well" in out
    assert "none tried now" in command(site, "doctor")[0]
