"""A small workspace to break: three packages laid out as the rules ask, in a temporary folder."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ROOT_PYPROJECT = """
[project]
name = "modulm-workspace"
version = "0"

[dependency-groups]
dev = ["pytest>=8"]

[tool.importlinter]
root_packages = ["modulm", "modulm_quant_gguf"]
"""

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "A package."
readme = "README.md"
license = "Apache-2.0"
license-files = ["LICENSE"]
requires-python = ">=3.11"
dependencies = [{dependencies}]
"""

PLUGIN_ENTRY = """
[project.entry-points."modulm.quantization"]
gguf = "modulm_quant_gguf.scheme:Scheme"

[project.entry-points."modulm.interface_versions"]
"modulm.quantization" = "v1:v2"
"""


def _package(root: Path, folder: str, name: str, imported: str | None, dependencies: str) -> Path:
    package = root / "packages" / folder
    package.mkdir(parents=True)
    (package / "pyproject.toml").write_text(PYPROJECT.format(name=name, dependencies=dependencies))
    (package / "README.md").write_text("About.\n")
    (package / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    (package / "LICENSE").write_text("Apache\n")
    if imported:
        source = package / "src" / imported
        source.mkdir(parents=True)
        (source / "__init__.py").touch()
        (source / "py.typed").touch()
    return package


@pytest.fixture
def workspace_root(tmp_path):
    """A workspace of core, one plugin and the umbrella that breaks no rule."""
    (tmp_path / "pyproject.toml").write_text(ROOT_PYPROJECT)
    (tmp_path / "LICENSE").write_text("Apache\n")
    (tmp_path / "changes").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/known_extra.toml").touch()
    _package(tmp_path, "core", "modulm-core", "modulm", '"msgspec>=0.19"')
    _package(tmp_path, "modulm", "modulm", None, '"modulm-core>=0.1,<0.2", "modulm-quant-gguf>=0.1,<0.2"')
    plugin = _package(tmp_path, "quant-gguf", "modulm-quant-gguf", "modulm_quant_gguf", '"modulm-core>=0.1,<0.2"')
    (plugin / "src/modulm_quant_gguf/scheme.py").write_text("class Scheme: ...\n")
    with (plugin / "pyproject.toml").open("a") as file:
        file.write(PLUGIN_ENTRY)
    return tmp_path


@pytest.fixture
def edit():
    """A function that replaces a piece of a file, and fails when the piece is not there."""

    def replace(file: Path, old: str, new: str) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return replace
