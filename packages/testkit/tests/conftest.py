"""Lets tests import the mutants, which lie beside them, and run every contract's suite once."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "mutants"))


@pytest.fixture(scope="session")
def outcomes():
    """Return a contract and how every plugin fared, by the contract's name."""
    from contract import CONTRACTS

    found = {}

    def outcomes_of(name):
        if name not in found:
            import_module(f"{name}_mutants")
            found[name] = CONTRACTS[name].run()
        return CONTRACTS[name], found[name]

    return outcomes_of


def pytest_generate_tests(metafunc):
    if "contract_name" in metafunc.fixturenames:
        metafunc.parametrize("contract_name", metafunc.cls.contracts)
