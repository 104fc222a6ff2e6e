"""`modulm plugins doctor`: what is wrong with the installed plugins, each finding with the command that mends it.

Metadata is judged here. Whether plugins load is tried in a child process, and remembered for as long as nothing changes
that could change the answer; what was not well is tried each time. No plugin is imported into this process.
"""

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modulm.plugins.doctor import Finding
    from modulm.plugins.verdicts import Verdict

HELP = "find what is wrong with installed plugins, and say how to mend it"
_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.stdin.readline())
from modulm.cli.plugins_probe import main
main()
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--fresh", action="store_true", help="try every plugin anew")
    parser.add_argument("--no-import", action="store_true", help="judge by metadata alone: try none")
    parser.add_argument("--time-limit", type=float, default=30.0, metavar="S", help="per plugin; default: 30 s")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 when there are any."""
    from modulm.plugins import discovery, doctor, verdicts

    memory = verdicts.Memory() if args.fresh or args.no_import else verdicts.recall()
    before = set(memory.requirements)
    to_try = []
    for record in discovery.records():
        known = memory.verdicts.get(verdicts.key(record))
        well = known is not None and verdicts.is_well(record, known)
        if record.usable and not well and not args.no_import and doctor.missing_module(record) is None:
            to_try.append(verdicts.key(record))
    if to_try:
        memory.verdicts |= _tried(to_try, args.time_limit)
    found = doctor.examine(memory)
    if to_try or (set(memory.requirements) != before and not args.no_import):
        verdicts.remember(memory)
    if args.json:
        num_plugins = len(discovery.records())
        report = {"findings": [asdict(each) for each in found], "plugins": num_plugins, "tried": len(to_try)}
        print(json.dumps(report, indent=2))
    else:
        _print(found, len(discovery.records()), len(to_try))
    return int(bool(found))


def _tried(keys: list[str], limit_s: float) -> "dict[str, Verdict]":
    import subprocess

    from modulm.errors import EngineError
    from modulm.plugins.verdicts import Verdict

    order = f"{json.dumps(sys.path)}\n{json.dumps({'keys': keys, 'limit_s': limit_s})}\n"
    child = subprocess.run([sys.executable, "-c", _CHILD], input=order, capture_output=True, text=True, check=False)
    if child.returncode:
        raise EngineError(f"The child process that tries plugins ended with {child.returncode}: {child.stderr.strip()}")
    return {name: Verdict(**found) for name, found in json.loads(child.stdout).items()}


def _print(found: "list[Finding]", num_plugins: int, num_tried: int) -> None:
    for each in found:
        print(f"{each.check}: {each.problem}\n    {each.mend}")
    tried = f"{num_tried} tried now" if num_tried else "none tried now"
    print(f"{num_plugins} plugins, {tried}: {f'{len(found)} findings' if found else 'all is well'}.")
