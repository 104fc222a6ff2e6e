"""The pytest plugin: it costs nothing, registries are clean for those who ask, and leaks are found."""

import os
import subprocess
import sys
import threading

import pytest

from modulm_testkit.leaks import leaks


def test_importing_it_imports_nothing():
    code = (
        "import sys, modulm_testkit.plugin; "
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'numpy', 'modulm', 'hypothesis'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("number", [1, 2])
def test_registries_are_clean(clean_registries, monkeypatch, number):
    from modulm.plugins import discovery
    from modulm.plugins.registry import registry

    assert "VLLM_PLUGINS" not in os.environ
    assert "mine" not in registry("modulm.kernels")
    registry("modulm.kernels").register("mine", "nowhere:Kernels")
    monkeypatch.setenv("VLLM_PLUGINS", "nothing")
    discovery.reset()
    assert discovery.policy().items == ("nothing",)


def test_variables_are_put_back(monkeypatch, request):
    monkeypatch.setenv("VLLM_PLUGINS", "mine")
    request.getfixturevalue("clean_registries")
    assert "VLLM_PLUGINS" not in os.environ
    monkeypatch.undo()


def test_leaks_are_found(tmp_path, clean_registries):
    from modulm.plugins.registry import registry

    stop = threading.Event()
    file = None
    with leaks() as found:
        threading.Thread(target=stop.wait, name="left-over").start()
        file = (tmp_path / "file").open("w")
        registry("modulm.kernels").register("mine", "nowhere:Kernels")
    stop.set()
    file.close()
    assert any("left-over" in one for one in found)
    assert any("file" in one for one in found)
    assert "registrations of modulm.kernels" in found


def test_what_ends_by_itself_is_no_leak(tmp_path):
    with leaks() as found:
        threading.Timer(0.05, lambda: None).start()
        (tmp_path / "file").open("w").close()
    assert not found


def test_an_import_of_torch_is_found(monkeypatch):
    with leaks() as found:
        monkeypatch.setitem(sys.modules, "torch", sys)
    assert found == ["torch, imported"]


def test_fixture_passes_where_nothing_leaks(no_leaks):
    threading.Thread(target=int).start()


SUITE = """
import pytest
from modulm.interfaces.parsers import Parsed, ToolParser
from modulm.interfaces.reading import TextParser
from modulm_testkit.parsers import ToolParserConformance
class Nothing(TextParser, ToolParser):
    def read(self, text):
        yield from ()
class TestNothing(ToolParserConformance):
    samples = [("hi", Parsed("hi"))]
    @pytest.fixture
    def parser_class(self):
        return Nothing
"""


def test_cuts_are_counted(tmp_path):
    """Each text that the suite makes is cut into characters in one way; tests that cut nothing say nothing."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    ask = ["-q", "-p", "no:cacheprovider", "-k", "test_every_character", "test_suite.py"]
    done = subprocess.run([sys.executable, "-m", "pytest", *ask], capture_output=True, text=True, cwd=tmp_path)
    number = int(done.stdout.partition("parser invariants: ")[2].split()[0].replace(",", ""))
    assert "cuts over 1 parsers" in done.stdout and 10 < number < 30, done.stdout
    ask[-2] = "test_reads_its_samples"
    done = subprocess.run([sys.executable, "-m", "pytest", *ask], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "parser invariants" not in done.stdout
