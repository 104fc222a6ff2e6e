"""Contracts of tensors: what keeps a contract passes its suite, and each promise is broken by a mutant."""

import pytest
import torch
from checks import MutantChecks


class TestMutants(MutantChecks):
    contracts = ("attention", "kernels", "logits", "model", "platform", "program")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_table_is_current():
    from table import FILE, written

    assert FILE.read_text() == written(), f"write it anew: python {FILE.parent}/tests/mutants/table.py"
