import json
import resource
import subprocess
import sys

import pytest

from modulm.cli import COMMANDS, main

GENERAL, KERNELS = "vllm.general_plugins", "modulm.kernels"


@pytest.fixture
def three(site):
    site.install("dist-a", {GENERAL: {"one": "cmd_boom:f"}, "vllm.endpoint_plugins": {"ep": "cmd_boom:f"},
                            KERNELS: {"fast": "cmd_boom:K"}}, cmd_boom="raise SystemExit('imported')")  # fmt: skip
    return site


def rows(capsys, *args):
    assert main(["plugins", "list", "--json", *args]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_every_record_and_imports_nothing(three, capsys):
    found = {(row["group"], row["name"]): row for row in rows(capsys)}
    assert found[GENERAL, "one"] == {
        "group": GENERAL, "name": "one", "value": "cmd_boom:f", "distribution": "dist-a", "version": "1.0",
        "state": "available", "reason": "", "seconds": None, "registered": [], "interface_versions": "",
        "interface": 1, "processes": ["server", "embedder", "engine", "offline"],
    }  # fmt: skip
    assert found["vllm.endpoint_plugins", "ep"]["state"] == "needs naming"
    assert found[KERNELS, "torch"]["state"] == "built in" and found[KERNELS, "torch"]["distribution"] == "modulm-core"


def test_one_group(three, capsys):
    assert [(row["name"], row["state"]) for row in rows(capsys, "--group", KERNELS)] == [
        ("fast", "available"), ("torch", "built in"),
    ]  # fmt: skip
    assert main(["plugins", "list", "--group", "modulm.kernel"]) == 2
    assert "Did you mean 'modulm.kernels'?" in capsys.readouterr().err


def test_text(three, capsys, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "on")
    assert main(["plugins", "list"]) == 1
    captured = capsys.readouterr()
    assert "modulm.kernels (interface 1; loaded by: engine, offline)\n  fast " in captured.out
    assert "VLLM_PLUGINS='on' does not name it" in captured.out
    assert captured.err.startswith("modulm: warning: VLLM_PLUGINS names 'on'") and "'one'" in captured.err


@pytest.mark.parametrize("variable", ["VLLM_PLUGINS", "MODULM_DISABLE_PLUGINS"])
def test_the_doctor_finds_names_that_match_nothing(three, capsys, monkeypatch, variable):
    monkeypatch.setenv(variable, "oen")
    assert main(["plugins", "doctor", "--no-import", "--json"]) == 1
    (found,) = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["check"] == "name"]
    assert found["problem"].startswith(f"{variable} names 'oen', ") and "Did you mean 'one'?" in found["problem"]
    assert found["mend"] == f"unset {variable}, or correct 'oen' in it"


def test_version_help_and_unknown_words(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("modulm 0.")
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)
    assert main([]) == 2
    capsys.readouterr()
    assert main(["plugin"]) == 2
    assert "Command 'plugin' is unknown. Did you mean 'plugins'?" in capsys.readouterr().err
    assert main(["--vresion"]) == 2
    assert "Option '--vresion' is unknown. Did you mean '--version'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plugins", "list", "--jsno"], "Option '--jsno' is unknown. Did you mean '--json'?"),
        (["plugins", "list", "--js"], "Option '--js' is unknown."),
        (["plugins"], "the following arguments are required: ACTION"),
        (["plugins", "lst"], "invalid choice: 'lst'"),
    ],
)
def test_bad_options_are_one_line_and_status_2(words, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    err = capsys.readouterr().err
    assert caught.value.code == 2 and err.startswith("modulm: error: ") and message in err and err.count("\n") == 1


@pytest.mark.parametrize("words", [["--version"], ["plugins", "list"], ["plugins", "list", "--json"]])
def test_quick_and_without_torch(words):
    """The promise is 0.3 s on a machine with nothing else to do: what counts is the processor time it takes."""
    code = (
        "import sys\nfrom modulm.cli import main\nstatus = main(sys.argv[1:])\n"
        "assert not {'torch', 'numpy', 'asyncio'} & set(sys.modules), sorted(sys.modules)\nsys.exit(status)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3
