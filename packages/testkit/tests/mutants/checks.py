"""What every contract's mutants are asked: the classes of tests in both tiers derive from this."""


class MutantChecks:
    """`contracts` names modules of this folder; each test gets one of them as `contract_name`."""

    contracts = ()

    def test_references_pass_every_test(self, outcomes, contract_name):
        contract, found = outcomes(contract_name)
        for name in contract.references:
            assert not found[name].failed, found[name].reasons
        assert set.union(*(found[name].passed for name in contract.references)) == set(contract.promises)

    def test_each_mutant_fails_its_own_test_alone(self, outcomes, contract_name):
        contract, found = outcomes(contract_name)
        wrong = {
            name: found[name].failed for name, (test, *_) in contract.mutants.items() if found[name].failed != {test}
        }
        reasons = {name: [found[name].reasons.get(test) for test in tests] for name, tests in wrong.items()}
        assert not wrong, f"{wrong}\n{reasons}"

    def test_each_promise_has_a_mutant(self, outcomes, contract_name):
        contract, _ = outcomes(contract_name)
        assert set(contract.promises) == {test for test, *_ in contract.mutants.values()}
        assert all(contract.promises.values()), "a test has no docstring"
        assert all(mutant.__doc__ for _, mutant, _ in contract.mutants.values()), "a mutant has no docstring"
