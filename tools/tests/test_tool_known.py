"""The generated table is current, sorted, and refuses two owners of one name."""

import ast

import pytest

import gen_known
from workspace import ROOT


def test_the_table_in_the_tree_is_current():
    assert (ROOT / gen_known.TARGET).read_text() == gen_known.render(gen_known.known(ROOT))


def test_declared_and_planned_names_are_joined_and_sorted(workspace_root):
    (workspace_root / "tools/known_extra.toml").write_text(
        '["modulm.quantization"]\nmodulm-quant-awq = ["awq"]\nmodulm-other = ["gguf"]\n'
        '["modulm.attention"]\nb = ["z", "a"]\n'
    )
    table = gen_known.known(workspace_root)
    assert table == {
        "modulm.attention": {"a": "b", "z": "b"},
        "modulm.quantization": {"awq": "modulm-quant-awq", "gguf": "modulm-quant-gguf"},
    }
    assert list(table) == sorted(table)
    assert list(table["modulm.attention"]) == ["a", "z"]


def test_rendered_text_is_the_table(workspace_root):
    table = gen_known.known(workspace_root)
    assignment = ast.parse(gen_known.render(table)).body[1]
    assert ast.literal_eval(assignment.value) == table


def test_a_name_with_two_owners_is_refused(workspace_root):
    (workspace_root / "tools/known_extra.toml").write_text('["modulm.models"]\na = ["x"]\nb = ["x"]\n')
    with pytest.raises(ValueError, match="'x' is given to a and to b"):
        gen_known.known(workspace_root)
