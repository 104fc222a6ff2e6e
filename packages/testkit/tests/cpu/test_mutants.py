"""What keeps a contract passes its suite, and each promise is broken by a mutant: contracts that take longer."""

from pathlib import Path

import pytest
import torch
from checks import MutantChecks


class TestMutants(MutantChecks):
    contracts = (
        "attention",
        "general",
        "kernels",
        "logits",
        "model",
        "platform",
        "program",
        "reasoning_parsers",
        "sampling",
        "tool_parsers",
    )


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_table_is_current():
    from table import FILE, written

    assert FILE.read_text() == written(), f"write it anew: python {FILE.parent}/tests/mutants/table.py"


def test_every_suite_has_mutants_that_run():
    from contract import CONTRACTS
    from table import written

    written()
    quick = (Path(__file__).parents[1] / "null/test_quick_mutants.py").read_text()
    assert {name for name in CONTRACTS if f'"{name}"' not in quick} == set(TestMutants.contracts)
