"""`modulm plugins ACTION`: which plugins are installed, what is wrong with them, why one is used; locks; a new one.

No action imports a plugin or torch into this process. The exit status is 0 when all is well, 1 when something is found,
2 when the command itself is refused.
"""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

HELP = "list, check, explain and lock the installed plugins, or write a new one"
LOCK = "modulm-plugins.lock"
_ELSEWHERE = {
    "doctor": "modulm.cli.plugins_doctor",
    "why": "modulm.cli.plugins_why",
    "new": "modulm.cli.plugins_new",
}
"""Actions with a file of their own: a module with `HELP`, `add_arguments(parser)` and `run(args)`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show every plugin with its package, version and state")
    listing.add_argument("--group", metavar="GROUP", help="only this group, such as modulm.attention")
    for name, where in _ELSEWHERE.items():
        module = import_module(where)
        action = actions.add_parser(name, help=module.HELP, description=module.__doc__)
        module.add_arguments(action)
    lock = actions.add_parser("lock", help="write down what is installed, for `verify` and --plugins-lock")
    verify = actions.add_parser("verify", help="hold what is installed against a lock file")
    for each in (lock, verify):
        each.add_argument("file", nargs="?", default=LOCK, metavar="FILE", help=f"default: {LOCK}")
    for each in (listing, lock, verify):
        each.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Do what the action says; see the module."""
    if args.action in _ELSEWHERE:
        status: int = import_module(_ELSEWHERE[args.action]).run(args)
        return status
    return {"list": _list, "lock": _lock, "verify": _verify}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    """Print the list on stdout, and on stderr what is wrong with the choice of plugins."""
    from modulm.plugins import discovery, report

    rows = report.listed(args.group)
    print(json.dumps(report.as_objects(rows), indent=2) if args.json else report.as_text(rows))
    notices = discovery.notices()
    for line in notices:
        print(f"modulm: warning: {line}", file=sys.stderr)
    return int(bool(notices) or any(report.is_unwell(row) for row in rows))


def _lock(args: argparse.Namespace) -> int:
    from modulm.plugins import discovery, lock

    damaged = {
        found.name: files for found in discovery.inventory().distributions if (files := found.damaged(contents=True))
    }
    for name, files in damaged.items():
        _say(args, f"{name} is not locked: {files[0]} is not as it was installed. Install it anew.")
    locked = [one for one in lock.current() if one.name not in damaged]
    lock.write(Path(args.file), locked)
    report = {"file": args.file, "distributions": [one.name for one in locked], "damaged": damaged}
    _show(args, report, f"{args.file}: {len(locked)} distributions are locked.")
    return int(bool(damaged))


def _verify(args: argparse.Namespace) -> int:
    from modulm.plugins import lock

    locked = lock.read(Path(args.file))
    found = lock.differences(locked)
    lines = [f"{each.kind}: {each.problem}" for each in found]
    report = {"file": args.file, "differences": [vars(each) for each in found]}
    _show(args, report, "\n".join(lines) or f"{args.file}: all {len(locked)} distributions are as they were locked.")
    return int(bool(found))


def _show(args: argparse.Namespace, report: Any, text: str) -> None:
    print(json.dumps(report, indent=2) if args.json else text)


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        print(f"modulm: warning: {text}", file=sys.stderr)
