"""`modulm plugins list`: what is installed, what VLLM_PLUGINS makes of it, and why. Imports no plugin and no torch."""

import argparse
import json
import sys

HELP = "list the installed plugins and whether they may be used"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show every plugin with its package, version and state")
    listing.add_argument("--json", action="store_true", help="print one JSON array, an object per plugin")
    listing.add_argument("--group", metavar="GROUP", help="only this group, such as modulm.attention")


def run(args: argparse.Namespace) -> int:
    """Print the list on stdout, and on stderr what is wrong with the choice of plugins."""
    from modulm.plugins import discovery, report

    rows = report.listed(args.group)
    print(json.dumps(report.as_objects(rows), indent=2) if args.json else report.as_text(rows))
    for line in discovery.notices():
        print(f"modulm: warning: {line}", file=sys.stderr)
    return 0
