"""`check_packages.py` accepts this workspace's layout and notices each rule broken."""

import pytest

import check_packages

CORE, PLUGIN, UMBRELLA = "packages/core/", "packages/quant-gguf/", "packages/modulm/"


def test_a_good_workspace_has_no_problems(workspace_root):
    assert check_packages.problems(workspace_root) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (PLUGIN, '"modulm-quant-gguf"', '"modulm-gguf"', "naming rule"),
        (PLUGIN, '"Apache-2.0"', '"MIT"', "project.license"),
        (PLUGIN, '">=3.11"', '">=3.9"', "requires-python"),
        (PLUGIN, '"0.1.0"', '"0.1"', "three numbers"),
        (PLUGIN, "A package.", "A package", "not a sentence"),
        (PLUGIN, "hatchling.build", "setuptools.build_meta", "build-backend"),
        (PLUGIN, "modulm-core>=0.1,<0.2", "modulm-core>=0.1", "not of the form"),
        (PLUGIN, "modulm-core>=0.1,<0.2", "modulm-core>=0.1,<0.3", "not of the form"),
        (PLUGIN, "modulm-core>=0.1,<0.2", "modulm-core>=0.2,<0.3", "leaves out modulm-core 0.1.0"),
        (PLUGIN, "modulm-core>=0.1,<0.2", "numpy", "does not depend on modulm-core"),
        (PLUGIN, 'entry-points."modulm.quantization', 'entry-points."modulm.quantisation', "unknown"),
        (PLUGIN, '"modulm.quantization" = "v1', '"modulm.quantisation" = "v1', "is not a contract"),
        (PLUGIN, '"v1:v2"', '"1"', "is not a contract and 'v1'"),
        (PLUGIN, "scheme:Scheme", "schema:Scheme", "no module"),
        (PLUGIN, "scheme:Scheme", "scheme:Missing", "has no Missing"),
        (PLUGIN, "scheme:Scheme", "scheme", "not 'module:attribute'"),
        (UMBRELLA, "modulm-quant-gguf>=0.1,<0.2", "modulm-quant-gguf", "not of the form"),
    ],
)
def test_metadata(workspace_root, edit, file, old, new, words):
    edit(workspace_root / file / "pyproject.toml", old, new)
    assert any(words in line for line in check_packages.problems(workspace_root))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("README.md", "README.md is missing"),
        ("CHANGELOG.md", "CHANGELOG.md is missing"),
        ("LICENSE", "LICENSE is missing"),
        ("src/modulm/py.typed", "py.typed is missing"),
    ],
)
def test_missing_file(workspace_root, file, words):
    (workspace_root / CORE / file).unlink()
    (line,) = check_packages.problems(workspace_root)
    assert line.startswith("core: ")
    assert words in line


def test_second_import_package(workspace_root):
    (workspace_root / CORE / "src/modulm_extra").mkdir()
    (line,) = check_packages.problems(workspace_root)
    assert "src/ holds ['modulm', 'modulm_extra']" in line


def test_package_outside_the_import_contracts(workspace_root, edit):
    edit(workspace_root / "pyproject.toml", ', "modulm_quant_gguf"', "")
    (line,) = check_packages.problems(workspace_root)
    assert "root_packages" in line


def test_test_folder_with_init(workspace_root):
    (workspace_root / CORE / "tests/null").mkdir(parents=True)
    (workspace_root / CORE / "tests/null/__init__.py").touch()
    assert any("__init__.py" in line for line in check_packages.problems(workspace_root))


@pytest.mark.parametrize("line", ["import gguf", "def f():\n    from gguf.constants import X", "import numpy.linalg"])
def test_import_of_what_is_not_declared(workspace_root, line):
    file = workspace_root / PLUGIN / "src/modulm_quant_gguf/scheme.py"
    file.write_text(f"import re, modulm.nn\nfrom . import x\n{line}\nclass Scheme: ...\n")
    (found,) = check_packages.problems(workspace_root)
    assert "scheme.py imports" in found
    assert "no dependency declares" in found


def test_modules_with_another_name_than_their_distribution(workspace_root):
    file = workspace_root / PLUGIN / "src/modulm_quant_gguf/scheme.py"
    file.write_text("import zmq\nclass Scheme: ...\n")
    assert any("imports zmq" in line for line in check_packages.problems(workspace_root))
    project = workspace_root / PLUGIN / "pyproject.toml"
    text = project.read_text()
    assert "dependencies = [" in text
    project.write_text(text.replace("dependencies = [", 'dependencies = ["pyzmq>=26", ', 1))
    assert not any("imports zmq" in line for line in check_packages.problems(workspace_root))


@pytest.mark.parametrize(
    ("module", "words"), [("modulm_quant_gguf.scheme", None), ("modulm_quant_gguf.plugin", "no module")]
)
def test_a_pytest_plugin_is_a_module(workspace_root, module, words):
    with (workspace_root / PLUGIN / "pyproject.toml").open("a") as file:
        file.write(f'\n[project.entry-points.pytest11]\nmine = "{module}"\n')
    found = check_packages.problems(workspace_root)
    assert [words in line for line in found] == ([True] if words else [])
