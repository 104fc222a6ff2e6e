"""The README's example runs as it stands, and its table names every suite as it is."""

import re
from importlib import import_module
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
pytest_plugins = ["pytester"]


def test_the_example_passes(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    example, _ = re.findall(r"```python\n(.*?)```", README, re.S)
    pytester.makepyfile(test_readme_example=example)
    run = ["-p", "modulm_testkit.plugin", "-pno:cacheprovider"]
    result = pytester.runpytest_inprocess("test_readme_example.py", *run)
    result.assert_outcomes(passed=17, skipped=1)


TENSORS = ("attention", "kernels", "logits", "model", "platform", "program")
ROWS = re.findall(r"^\| `([\w.]+)` \| `(\w+)\.(\w+)` \| `(\w+)`", README, re.M)


@pytest.mark.parametrize("row", [row for row in ROWS if row[1] not in TENSORS])
def test_the_table_is_true(row):
    group, module, name, fixture = row
    from modulm.interfaces import VERSIONS

    assert group in VERSIONS or group == "modulm.checkpoints"
    suite = getattr(import_module(f"modulm_testkit.{module}"), name)
    assert hasattr(suite, f"_{fixture}")


def test_every_contract_has_a_row():
    from modulm.interfaces import VERSIONS

    assert {row[0] for row in ROWS} == set(VERSIONS)
