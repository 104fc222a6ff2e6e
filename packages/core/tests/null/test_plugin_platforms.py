"""The current platform, from plugins and built in.

Of vLLM's own tests (its tests/plugins_tests): a plugin's platform becomes the current one,
test_one_active_plugin_wins; VLLM_TARGET_DEVICE=cpu goes before all,
test_target_device_cpu_does_not_even_import_plugins; importing the engine resolves no platform,
test_importing_modulm_probes_nothing. Two that are active are an error there and here. A probe that raises counts as
inactive there, in silence; here it is a warning with its traceback. There is no table of replaced operations, so
`test_oot_custom_op` has no counterpart.
"""

import os
import subprocess
import sys

import pytest

from modulm.config import EngineConfig
from modulm.errors import Broken, ConfigError, Incompatible, UnknownName, Unsupported
from modulm.plugins import builtin, discovery
from modulm.plugins.platforms import current_platform
from modulm.resolve import resolve

PLATFORM = "vllm.platform_plugins"
TEXT = """
from modulm.interfaces.platform import Platform

class Npu(Platform):
    name = "NAME"
    device_type = "TYPE"
    def device(self, index=0): ...
    def available_memory_bytes(self, index=0): return 1
    def total_memory_bytes(self, index=0): return 1

class Wrong: ...

def here(): return __name__ + ".Npu"
def colon(): return __name__ + ":Npu"
def nowhere(): return None
def bad_class(): return __name__ + ".Wrong"
def bad_answer(): return 3
def gone(): return "no_such_module.Npu"
def fails(): raise OSError("driver is missing")
"""


def text(name="npu", device_type="npu"):
    return TEXT.replace("NAME", name).replace("TYPE", device_type)


@pytest.fixture
def built_in(site, monkeypatch):
    """Stand-ins for core's platforms; whether CUDA is there is a switch."""
    probe = "\nANSWER = False\ndef probe(): return ANSWER\n"
    site.install("core-stand-in", core_cpu=text("cpu", "cpu"), core_cuda=text("cuda", "cuda") + probe)
    monkeypatch.setitem(builtin.PLATFORMS, "cpu", "core_cpu:Npu")
    monkeypatch.setitem(builtin.PLATFORMS, "cuda", "core_cuda:Npu")
    monkeypatch.setitem(builtin.PROBES, "cuda", "core_cuda:probe")
    return site


def set_cuda(there):
    import core_cuda

    core_cuda.ANSWER = there


def test_built_in_ones(built_in):
    assert current_platform().name == "cpu"
    assert current_platform() is current_platform("cpu")
    set_cuda(True)
    assert current_platform().name == "cpu", "what was chosen stays"
    built_in.forget()
    assert current_platform().name == "cuda"
    assert current_platform("cpu").name == "cpu" and current_platform().name == "cuda"


def test_what_was_asked_for_first_is_current(built_in):
    set_cuda(True)
    assert current_platform("cpu").name == "cpu"
    assert current_platform().name == "cpu"


def test_cuda_asked_for_where_there_is_none(built_in):
    with pytest.raises(Unsupported, match="'cuda' \\(built in\\) cannot serve: no such device"):
        current_platform("cuda")


@pytest.mark.parametrize("probe", ["here", "colon"])
def test_one_active_plugin_wins(built_in, probe):
    set_cuda(True)
    built_in.install("dist-npu", {PLATFORM: {"my_npu": f"npu_a:{probe}", "off": "npu_a:nowhere"}}, npu_a=text())
    assert current_platform().name == "npu"
    assert {record.name: record.state for record in discovery.records(PLATFORM)} == {
        "my_npu": "loaded",
        "off": "inactive",
    }


@pytest.mark.parametrize("asked", ["npu", "my_npu", "dist-npu:my_npu"])
def test_a_plugin_by_any_of_its_names(built_in, asked):
    built_in.install("dist-npu", {PLATFORM: {"my_npu": "npu_b:here"}}, npu_b=text())
    assert current_platform(asked).name == "npu"


def test_the_built_in_cpu_beside_an_active_plugin(built_in):
    built_in.install("dist-npu", {PLATFORM: {"my_npu": "npu_c:here"}}, npu_c=text())
    assert current_platform("cpu").name == "cpu"


def test_two_active_plugins_name_both_and_how_to_choose(built_in, monkeypatch):
    built_in.install("dist-a", {PLATFORM: {"one": "npu_d:here"}}, npu_d=text())
    built_in.install("dist-b", {PLATFORM: {"two": "npu_e:here"}}, npu_e=text())
    with pytest.raises(Incompatible, match="'one' \\(dist-a 1.0\\) and 'two' \\(dist-b 1.0\\).*device='dist-a:one' or"):
        current_platform()
    assert type(current_platform("dist-b:two")).__module__ == "npu_e"
    built_in.forget()
    monkeypatch.setenv("VLLM_PLUGINS", "one")
    assert type(current_platform()).__module__ == "npu_d"


@pytest.mark.parametrize(
    ("probe", "error", "words"),
    [("fails", Broken, "driver is missing"), ("gone", Broken, "no_such_module"),
     ("bad_class", Incompatible, "must be a class that derives from modulm.interfaces.platform.Platform"),
     ("bad_answer", Incompatible, "must answer a class path or None"), ("missing", Broken, "has no attribute")],
)  # fmt: skip
def test_a_failing_probe(built_in, probe, error, words, caplog, monkeypatch):
    built_in.install("dist-npu", {PLATFORM: {"my_npu": f"npu_f:{probe}"}}, npu_f=text())
    assert current_platform().name == "cpu"
    assert words in caplog.text and "Traceback" in caplog.text and caplog.records[-1].levelname == "WARNING"
    built_in.forget()
    with pytest.raises(error, match=words):
        current_platform("my_npu")
    with pytest.raises(Broken, match=words):
        current_platform("npu")  # it may be the one that was meant
    assert current_platform("cpu").name == "cpu"
    built_in.forget()
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    with pytest.raises(error, match=words):
        current_platform()


def test_asked_for_but_not_here(built_in):
    built_in.install("dist-npu", {PLATFORM: {"my_npu": "npu_g:nowhere"}}, npu_g=text())
    with pytest.raises(Unsupported, match="cannot serve on this machine"):
        current_platform("my_npu")
    with pytest.raises(UnknownName, match="There are: cuda, cpu, my_npu.*Did you mean 'my_npu'"):
        current_platform("my_np")


def test_target_device_cpu_does_not_even_import_plugins(built_in, monkeypatch, caplog):
    set_cuda(True)
    built_in.install("dist-npu", {PLATFORM: {"my_npu": "npu_h:here"}}, npu_h=text())
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "CPU")
    assert current_platform().name == "cpu" and current_platform("cpu").name == "cpu"
    assert "npu_h" not in sys.modules
    assert current_platform("my_npu").name == "npu"
    assert "VLLM_TARGET_DEVICE='cpu' is overruled by device='my_npu'" in caplog.text


@pytest.mark.parametrize("probe", ["no_probe", "fails"])
def test_a_broken_built_in_probe_is_passed_over(built_in, monkeypatch, caplog, probe):
    monkeypatch.setitem(builtin.PROBES, "cuda", f"core_cuda:{probe}")
    assert current_platform().name == "cpu" and "Platform 'cuda' (built in) is installed but broken" in caplog.text
    built_in.forget()
    with pytest.raises(Broken):
        current_platform("cuda")
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    with pytest.raises(Broken):
        current_platform()


def test_importing_modulm_probes_nothing(built_in):
    built_in.install("dist-npu", {PLATFORM: {"my_npu": "npu_loud:here"}}, npu_loud="import sys; sys.exit('probed')")
    code = "import modulm.cli, modulm.plugins.platforms, modulm.resolve\n"
    code += "from modulm import LLM, AsyncLLM, ModelRegistry\n"
    code += "from modulm.plugins import discovery\n"
    code += "print([r.state for r in discovery.records('vllm.platform_plugins') if r.name == 'my_npu'])"
    environment = {**os.environ, "PYTHONPATH": str(built_in.folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "['available']\n"), done.stderr


def test_the_list_filters_platforms(built_in, monkeypatch):
    built_in.install("dist-npu", {PLATFORM: {"my_npu": "npu_i:here"}}, npu_i=text())
    monkeypatch.setenv("VLLM_PLUGINS", "")
    assert current_platform().name == "cpu" and "npu_i" not in sys.modules


def test_counting_threads_of_another_device_is_refused(built_in):
    built_in.install("modulm-npu", {PLATFORM: {"npu": "npu_plugin:here"}}, npu_plugin=text())
    with pytest.raises(ConfigError, match="cpu_threads=2 does not work on platform 'npu'.*leave the option out"):
        resolve(EngineConfig.make(model="no/such", device="npu", cpu_threads=2))
