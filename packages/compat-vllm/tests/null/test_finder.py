"""`import vllm` in processes of its own: who answers it, what it costs, what is said of what is missing."""

import json
import os
import pickle
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import modulm_compat_vllm


def child(code, *, folder=None, **variables):
    """Run code in a new interpreter, in `folder` and with it on the path; return the JSON that it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MODULM_", "VLLM_"))}
    path = [str(folder), *filter(None, [environment.get("PYTHONPATH")])] if folder else []
    environment |= {"PYTHONPATH": os.pathsep.join(path)} if path else {}
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{code}"],
        env=environment | variables, cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_distribution_installs_the_hook():
    assert [f for f in metadata.files("modulm-compat-vllm") if str(f) == "modulm_compat_vllm.pth"]


def test_a_start_loads_two_small_modules_and_no_other():
    code = f"""
import json, os, sys
sys.path.insert(0, {str(Path(modulm_compat_vllm.__file__).parents[1])!r})
before = set(sys.modules)
import modulm_compat_vllm.finder; modulm_compat_vllm.finder.at_start()
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["modulm_compat_vllm", "modulm_compat_vllm.finder"]


def test_importing_vllm_imports_no_torch_and_gives_its_logger_a_handler():
    code = """
import logging, vllm
from vllm import LLM, ModelRegistry, RequestOutput, SamplingParams
import modulm
same = [LLM is modulm.LLM, SamplingParams is modulm.SamplingParams, ModelRegistry is modulm.ModelRegistry]
loud = logging.getLogger("vllm")
print(json.dumps(["torch" in sys.modules, vllm.__version__, same, len(loud.handlers), loud.level]))
"""
    assert child(code) == [False, "0.32.0", [True] * 3, 1, 20]
    assert child(code, MODULM_COMPAT_VLLM_VERSION="0.31.1", VLLM_LOGGING_LEVEL="debug")[1] == "0.31.1"


def test_plugins_log_under_vllm_and_once_where_they_say_so():
    code = """
import io, logging
from vllm.logger import init_logger
text = io.StringIO()
logging.getLogger("vllm").handlers[0].setStream(text)
log = init_logger("vllm.theirs")
for _ in range(2):
    log.info("each time")
    log.warning_once("once %d", 1, scope="local")
print(json.dumps([line.split(" ", 2)[0::2] for line in text.getvalue().splitlines()]))
"""
    each, once = ["INFO", "vllm.theirs: each time"], ["WARNING", "vllm.theirs: once 1"]
    assert child(code) == [each, once, each]


STATUS = """
import logging
text = []
class Keep(logging.Handler):
    def emit(self, record): text.append((record.levelname, record.getMessage()))
logging.getLogger("modulm").addHandler(Keep())
logging.getLogger("modulm").setLevel("DEBUG")
import modulm_compat_vllm
before = modulm_compat_vllm.status()
import vllm
print(json.dumps([vllm.__file__, before, modulm_compat_vllm.status(), text]))
"""


def test_a_real_vllm_goes_first(tmp_path):
    (tmp_path / "vllm").mkdir()
    real = tmp_path / "vllm/__init__.py"
    real.write_text("import vllm.config\n")
    (tmp_path / "vllm/config.py").write_text("")
    file, before, after, text = child(STATUS, folder=tmp_path)
    assert file == str(real)
    assert before == after
    assert (after["installed"], after["serving"], after["real_vllm"]) == (True, False, str(real))
    assert after["reason"] == f"a real vLLM goes before it: {real}"
    assert ["DEBUG", f"import vllm is left to the real one, {real}."] in text


def test_a_mere_folder_called_vllm_is_none(tmp_path):
    (tmp_path / "vllm").mkdir()
    file, before, after, _ = child(STATUS, folder=tmp_path)
    assert file.startswith(after["tree"])
    assert before == after
    assert (after["serving"], after["real_vllm"], after["reason"]) == (True, None, "")


def test_it_can_be_switched_off():
    code = """
import modulm_compat_vllm
try:
    import vllm
except ModuleNotFoundError as error:
    answer = [error.name, modulm_compat_vllm.status()["reason"]]
modulm_compat_vllm.install()
modulm_compat_vllm.install()
import vllm
finders = [finder for finder in sys.meta_path if type(finder).__name__ == "Finder"]
print(json.dumps([*answer, modulm_compat_vllm.status()["serving"], len(finders)]))
"""
    reason = "the finder is not installed in this process (MODULM_COMPAT_VLLM='off')"
    assert child(code, MODULM_COMPAT_VLLM="off") == ["vllm", reason, True, 1]


@pytest.mark.parametrize(
    ("statement", "name", "there"),
    [
        ("import vllm.ray", "vllm.ray", "'vllm' has: CompletionOutput, LLM, ModelRegistry, "),
        ("from vllm import SamplingParam", "vllm.SamplingParam", "Did you mean 'vllm.SamplingParams'?"),
        ("from vllm.logger import init_loger", "vllm.logger.init_loger", "'vllm.logger' has: init_logger. Did you"),
        ("import vllm.sampling_params.more", "vllm.sampling_params.more", "has: RequestOutputKind, SamplingParams."),
    ],
)
def test_what_is_missing_is_named_with_what_there_is(statement, name, there):
    with pytest.raises(ModuleNotFoundError) as caught:
        exec(statement, {})
    text = str(caught.value)
    assert text.startswith(f"{name!r} is not here: modulm-compat-vllm offers the part of vLLM 0.32.0's names ")
    assert there in text


def test_names_that_are_asked_for_as_attributes():
    import vllm

    assert hasattr(vllm, "SamplingParams") and not hasattr(vllm, "EngineArgs") and not hasattr(vllm, "nonsense")
    with pytest.raises(AttributeError, match="vllm.EngineArgs is vLLM's, but modulm-compat-vllm does not offer it"):
        vllm.EngineArgs  # noqa: B018
    assert "LLM" in dir(vllm)


def test_there_is_one_module_for_each_name():
    import vllm.inputs
    import vllm.outputs

    from modulm import outputs

    assert vllm.outputs.RequestOutput is outputs.RequestOutput
    assert sys.modules["vllm.outputs"] is vllm.outputs
    assert pickle.loads(pickle.dumps(vllm.inputs.TextPrompt)) is vllm.inputs.TextPrompt
    assert vllm.inputs.TextPrompt.__module__ == "vllm.inputs"
    with pytest.raises(ImportError, match="'modulm_compat_vllm.vllm' is the tree behind `import vllm`"):
        import modulm_compat_vllm.vllm  # noqa: F401


def test_plugins_are_loaded_by_group_through_modulms_records(tmp_path):
    meta = tmp_path / "theirs-1.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    lines = ["[vllm.general_plugins]", "good = theirs:good", "bad = theirs:missing", "off = theirs:good"]
    (meta / "entry_points.txt").write_text("\n".join(lines))
    (tmp_path / "theirs.py").write_text("ran = []\ndef good(): ran.append('ran')\n")
    code = """
from vllm.plugins import DEFAULT_PLUGINS_GROUP, load_general_plugins, load_plugins_by_group
from modulm.plugins.bootstrap import load_records
import theirs
found = sorted(load_plugins_by_group(DEFAULT_PLUGINS_GROUP))
before = list(theirs.ran)
load_general_plugins()
load_general_plugins()
states = {r.name: r.state for r in load_records() if r.distribution == "theirs"}
print(json.dumps([found, before, theirs.ran, states]))
"""
    found, before, ran, states = child(code, folder=tmp_path, VLLM_PLUGINS="good,bad")
    assert (found, before, ran) == (["good"], [], ["ran"])
    assert states == {"good": "loaded", "bad": "broken", "off": "disabled"}
