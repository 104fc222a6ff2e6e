"""The documents say what the tree says: the tour's files and names exist, links lead on, the README's code runs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "packages/core/src/modulm"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/*.md")])


def _names(path: Path) -> set[str]:
    """Return `name` and `Class.name` for everything a file defines at its top two levels."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        for name in _defined(node):
            found.add(name)
            if isinstance(node, ast.ClassDef):
                found |= {f"{name}.{inner}" for child in node.body for inner in _defined(child)}
    return found


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def _stops() -> list[tuple[str, str]]:
    """Return (file, text) for each `## N. path` section of the tour."""
    parts = re.split(r"^## \d+\. `([^`]+)`.*$", (ROOT / "docs/tour.md").read_text(), flags=re.M)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def test_the_tour_visits_the_straight_line_in_order():
    rooms = [file.split("/")[0] for file, _ in _stops()]
    assert [room for room in dict.fromkeys(rooms)] == ["llm.py", "frontend", "transport", "engine", "worker"]
    assert len(_stops()) >= 6


def test_every_name_of_the_tour_exists_in_its_file():
    for file, text in _stops():
        path = SOURCE / file
        assert path.exists(), f"the tour names {file}, which is not there"
        defined = _names(path)
        for name in re.findall(r"`([A-Za-z_][\w.]*)\(\)`|\*\*`([A-Za-z_][\w.]*)`\*\*", text):
            symbol = name[0] or name[1]
            assert symbol in defined, f"the tour says {symbol!r} is in {file}; there are {sorted(defined)}"


def test_the_tour_lists_every_folder_of_core():
    tree = (ROOT / "docs/tour.md").read_text()
    for folder in sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"):
        assert f"`{folder}/`" in tree, f"the tour does not mention the folder {folder}/"


def test_the_messages_of_the_tour_are_the_messages_of_types():
    doors = re.search(r"The doors: (.*)\.", (ROOT / "docs/tour.md").read_text())
    assert doors is not None
    assert set(re.findall(r"`(\w+)`", doors[1])) <= _names(SOURCE / "types.py")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_readme_table_names_every_package():
    table = (ROOT / "README.md").read_text()
    for folder in sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")):
        assert f"(packages/{folder})" in table


def test_the_readme_code_runs():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert code is not None
    done = subprocess.run([sys.executable, "-c", code[1]], capture_output=True, text=True, timeout=300)
    assert "Paris" in done.stdout, done.stderr
