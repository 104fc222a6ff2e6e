"""The table of promises, mutants and failing tests, as `MUTANTS.md` has it; run as a program it writes the file.

Whether the table is true is for the tests of `checks.py` to say.
"""

from importlib import import_module
from pathlib import Path

from contract import CONTRACTS

FILE = Path(__file__).parents[2] / "MUTANTS.md"
HEAD = """\
# Promises and mutants

Every test of a suite is a promise of the contract, and for each there is a mutant: a plugin that is wrong in one way
and fails exactly that test. `tests/` runs them all. Written by `python packages/testkit/tests/mutants/table.py`.
"""


def written():
    """Return the file's text."""
    for file in sorted(FILE.parent.glob("tests/mutants/*_mutants.py")):
        import_module(file.stem)
    lines = [HEAD]
    for _, contract in sorted(CONTRACTS.items()):
        lines += [f"\n## {contract.suite.__name__}\n", "| test | promise | mutant |", "|---|---|---|"]
        for test, promise in contract.promises.items():
            mutants = [
                f"`{mutant}`: {(given.__doc__ or '').strip().partition(chr(10))[0]}"
                for mutant, (its_test, given, _) in contract.mutants.items()
                if its_test == test
            ]
            lines.append(f"| `{test}` | {_cell(promise)} | {_cell('<br>'.join(mutants))} |")
    return "\n".join(lines) + "\n"


def _cell(text):
    return text.replace("|", "\\|")


if __name__ == "__main__":
    FILE.write_text(written())
