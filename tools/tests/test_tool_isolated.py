"""The fresh environment of `check_isolated.py` holds what is linked and installed, and nothing of this checkout."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import check_isolated
import linked_environment
from workspace import packages


@pytest.fixture
def python(tmp_path):
    return linked_environment.make(tmp_path / "env", ["iniconfig"])


def ask(python, script):
    return subprocess.run([python, "-c", script], capture_output=True, text=True, cwd=python.parent)


def test_linked_library_is_there_and_the_workspace_is_not(python):
    script = "import iniconfig, importlib.metadata as m; print(m.version('iniconfig'))"
    assert ask(python, script).stdout.strip() == version("iniconfig")
    missing = ask(python, "import modulm")
    assert missing.returncode == 1
    assert "ModuleNotFoundError" in missing.stderr


def test_a_sibling_that_was_not_declared_is_found(python):
    (site_packages,) = python.parents[1].glob("lib/python*/site-packages")
    for name in ("modulm_core", "modulm_quant_gguf"):
        folder = site_packages / f"{name}-0.1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1.0\n")
    assert check_isolated.unasked(python, {"modulm-core"}) == ["modulm-quant-gguf"]


def test_only_what_is_declared_comes_along(workspace_root):
    ours = {package.distribution: package for package in packages(workspace_root)}
    found = {name: [p.folder for p in check_isolated.declared(package, ours)] for name, package in ours.items()}
    assert found == {
        "modulm-core": ["core"],
        "modulm": ["modulm", "core", "quant-gguf"],
        "modulm-quant-gguf": ["quant-gguf", "core"],
    }


def test_what_tests_ask_for_comes_along_too(workspace_root):
    with (workspace_root / "packages/core/pyproject.toml").open("a") as file:
        file.write('\n[dependency-groups]\ntest = ["modulm-quant-gguf>=0.1,<0.2", "pytest>=8"]\n')
    ours = {package.distribution: package for package in packages(workspace_root)}
    core = ours["modulm-core"]
    assert [p.folder for p in check_isolated.tested_with(core, ours)] == ["quant-gguf"]
    assert [p.folder for p in check_isolated.declared(core, ours)] == ["core", "quant-gguf"]
    assert [p.folder for p in check_isolated.declared(ours["modulm-quant-gguf"], ours)] == ["quant-gguf", "core"]


def test_requirements_lead_to_those_of_others_and_ours_are_left_out():
    ours = {"modulm-a": {"dependencies": ["pytest>=8"], "optional-dependencies": {"more": ["ruff"]}}}
    found = linked_environment.third_party(["modulm-a[more]", 'uv; python_version < "3"'], ours)
    assert set(found) == {"pytest", "iniconfig", "packaging", "pluggy", "pygments", "ruff"}


def test_a_version_that_is_not_what_was_declared_is_found(python, tmp_path):
    metadata = "Metadata-Version: 2.1\nName: some\nVersion: 1\nRequires-Dist: iniconfig<1\n"
    (site_packages,) = python.parents[1].glob("lib/python*/site-packages")
    (site_packages / "some-1.dist-info").mkdir()
    (site_packages / "some-1.dist-info/METADATA").write_text(metadata)
    with pytest.raises(SystemExit, match="iniconfig<1"):
        check_isolated.install_alone([], python)


def test_wheel_is_built_with_what_belongs_in_it(tmp_path):
    (core,) = [package for package in packages() if package.folder == "core"]
    wheel = check_isolated.build(core, tmp_path)
    listing = subprocess.run([sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True).stdout
    assert "modulm/py.typed" in listing
    assert "licenses/LICENSE" in listing
    assert "tests/" not in listing


def test_a_failing_command_shows_its_output(tmp_path):
    with pytest.raises(SystemExit, match=r"(?s)why it failed.*ended with status 3"):
        check_isolated.run([sys.executable, "-c", "print('why it failed'); raise SystemExit(3)"], tmp_path)
