"""The contracts' pages are current, leave nothing out, and say what the source says."""

import ast

import pytest

import gen_contracts
import source_names
from gen_contracts import CONTRACTS
from modulm.plugins.families import NOUNS
from workspace import ROOT

INTERFACES = ROOT / gen_contracts.SOURCE / "interfaces"
WITHOUT_PAGE = {"__init__", "recipe"}


def test_the_pages_in_the_tree_are_current():
    assert all((ROOT / path).read_text() == text for path, text in gen_contracts.pages(ROOT).items())


def test_every_contract_and_every_group_has_a_page():
    shown = {file for contract in CONTRACTS.values() for file in contract.files}
    assert {f"interfaces/{path.name}" for path in INTERFACES.glob("*.py") if path.stem not in WITHOUT_PAGE} <= shown
    groups = [group for contract in CONTRACTS.values() for group in contract.groups]
    assert set(groups) == set(NOUNS) and len(groups) == len(set(groups))


@pytest.mark.parametrize("name", [name for name, contract in CONTRACTS.items() if contract.groups])
def test_a_page_has_all_of_its_parts(name):
    text = (ROOT / gen_contracts.FOLDER / f"{name}.md").read_text()
    for part in ("interface version 1; loaded in: ", "## Declare it", "## Example\n", "## Names", "## Who provides it"):
        assert part in text


def test_every_public_method_is_on_its_page():
    for name, contract in CONTRACTS.items():
        text = (ROOT / gen_contracts.FOLDER / f"{name}.md").read_text()
        for file in contract.files if not contract.names else ():
            for node in ast.parse((ROOT / gen_contracts.SOURCE / file).read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                    for method in methods:
                        assert method.name.startswith("_") or f"#### `{node.name}.{method.name}`" in text


def test_a_changed_signature_makes_a_page_stale(tmp_path):
    for part in ("docs/extend", "packages"):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "docs/extend").symlink_to(ROOT / "docs/extend")
    source = tmp_path / gen_contracts.SOURCE
    for file in {file for contract in CONTRACTS.values() for file in contract.files}:
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / gen_contracts.SOURCE / file).read_text()
        (source / file).write_text(text.replace("def kv_layout(self)", "def kv_layout(self, rank: int)"))
    changed = {path.name for path, text in gen_contracts.pages(tmp_path).items() if "rank: int" in text}
    assert changed == {"executor.md"}


def test_sections_of_a_docstring_become_lists():
    text = "What it is.\n\nArgs:\n    a, b: First,\n        and more.\n    c: Last.\n\nRaises:\n    ValueError: No.\n"
    want = "What it is.\n\n*Args*\n\n- `a, b`: First,\n  and more.\n- `c`: Last.\n\n*Raises*\n\n- `ValueError`: No."
    assert source_names.prose(text) == want
