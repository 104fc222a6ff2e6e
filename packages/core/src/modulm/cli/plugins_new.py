"""`modulm plugins new KIND NAME`: write a complete plugin package, to be changed into one's own.

Templates are in another package, found through the entry-point group `modulm.templates`: an object with `kinds` (name
-> one line), `licenses` (the first is the default) and `write(kind, name, folder, license) -> files`. Knows none.
"""

import argparse
from importlib import metadata
from pathlib import Path
from typing import Any

from modulm.errors import ConfigError, NotInstalled
from modulm.plugins.families import TEMPLATES

HELP = "write a complete plugin package of a kind"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("kind", nargs="?", metavar="KIND", help="what it plugs in, see --list")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the package's name, such as my-attention")
    parser.add_argument("--list", action="store_true", help="show all kinds, one line each")
    parser.add_argument("--path", type=Path, metavar="DIR", help="folder to write into, new or empty; default: NAME")
    parser.add_argument("--license", metavar="ID", help="Apache-2.0 (the default), BSD-3-Clause or MIT")


def run(args: argparse.Namespace) -> int:
    """Write the package and say what to do next."""
    templates = _templates()
    if args.list:
        width = max(map(len, templates.kinds))
        print("\n".join(f"{kind:<{width}}  {about}" for kind, about in templates.kinds.items()))
        return 0
    if args.kind is None or args.name is None:
        raise ConfigError(
            "Nothing is written: KIND and NAME are needed, as in `modulm plugins new attention my-attention`. "
            f"There are: {', '.join(templates.kinds)}."
        )
    folder = args.path or Path(args.name)
    files = templates.write(args.kind, args.name, folder, args.license or templates.licenses[0])
    print(f"{len(files)} files in {folder}, README.md first. Next:\n")
    print(f"    cd {folder}\n    python -m pip install -e . --group test\n    pytest")
    return 0


def _templates() -> Any:
    found = list(metadata.entry_points(group=TEMPLATES))
    if not found:
        raise NotInstalled(
            "Templates of plugin packages are not installed. They come with modulm-testkit: pip install modulm-testkit."
        )
    return found[0].load()
