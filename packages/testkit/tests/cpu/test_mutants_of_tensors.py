"""Contracts of tensors: what keeps a contract passes its suite, and each promise is broken by a mutant of its own."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_references_pass_every_test(outcomes, contract_name):
    contract, found = outcomes(contract_name)
    for name in contract.references:
        assert not found[name].failed, found[name].reasons
    assert set.union(*(found[name].passed for name in contract.references)) == set(contract.promises)


def test_each_mutant_fails_its_own_test_alone(outcomes, contract_name):
    contract, found = outcomes(contract_name)
    wrong = {
        name: found[name].failed
        for name, (test, *_) in contract.mutants.items()
        if found[name].failed != {test}
    }
    reasons = {name: [found[name].reasons.get(test) for test in tests] for name, tests in wrong.items()}
    assert not wrong, f"{wrong}\n{reasons}"


def test_each_promise_has_a_mutant(outcomes, contract_name):
    contract, _ = outcomes(contract_name)
    assert set(contract.promises) == {test for test, *_ in contract.mutants.values()}
    assert all(contract.promises.values()), "a test has no docstring"
