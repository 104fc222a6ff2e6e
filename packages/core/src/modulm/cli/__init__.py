"""The command line. One file per command, imported only when it is chosen; `main` is what `modulm` runs.

A command module has `HELP`, `add_arguments(parser)` and `run(args) -> exit status`, and imports nothing heavy before
`run`. What modulm raises on purpose ends as one line and status 2; MODULM_LOG_LEVEL=DEBUG shows the traceback.
"""

import argparse
import os
import sys
from importlib import import_module
from typing import Any, NoReturn

from modulm.cli.streams import keep_stdout, use_utf8
from modulm.errors import ModulmError, did_you_mean

COMMANDS = {
    "bench": "modulm.cli.bench",
    "chat": "modulm.cli.chat",
    "config": "modulm.cli.config",
    "env": "modulm.cli.env",
    "generate": "modulm.cli.generate",
    "plugins": "modulm.cli.plugins",
    "quantize": "modulm.cli.quantize",
    "serve": "modulm.cli.serve",
}
_USAGE_ERROR = 2
_INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """argparse with our error format, and the nearest name for an unknown option."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown long options first: a missing required one may just be mistyped."""
        known = self._option_string_actions
        words = list(sys.argv[1:] if args is None else args)
        for word in words[: words.index("--")] if "--" in words else words:
            option = word.partition("=")[0]
            if option.startswith("--") and self._subparsers is None and option not in known:
                self.error(f"Option {option!r} is unknown.{did_you_mean(option, known)} See {self.prog} --help.")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print one line and leave with status 2."""
        self.exit(_USAGE_ERROR, f"modulm: error: {message}\n")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return the process's exit status."""
    words = sys.argv[1:] if argv is None else argv
    os.environ.setdefault("MODULM_LOG_LEVEL", "INFO")
    use_utf8()
    if argv is None:
        keep_stdout()
    try:
        return _dispatch(words)
    except ModulmError as error:
        _trace()
        print(f"modulm: error: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _dispatch(words: list[str]) -> int:
    command = words[0] if words else "--help"
    if command == "--version":
        from importlib.metadata import version

        print(f"modulm {version('modulm-core')}")
        return 0
    if command in ("-h", "--help", "help"):
        print(_overview())
        return 0 if words else _USAGE_ERROR
    if command not in COMMANDS:
        kind = "Option" if command.startswith("-") else "Command"
        hint = did_you_mean(command, [*COMMANDS, "--version", "--help"])
        print(f"modulm: error: {kind} {command!r} is unknown.{hint} There are: {', '.join(COMMANDS)}.", file=sys.stderr)
        return _USAGE_ERROR
    module = import_module(COMMANDS[command])
    parser = Parser(prog=f"modulm {command}", description=module.__doc__)
    module.add_arguments(parser)
    status: int = module.run(parser.parse_args(words[1:]))
    return status


def _overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    commands = [f"  {name:<{width}}{import_module(where).HELP}" for name, where in COMMANDS.items()]
    head = ["usage: modulm COMMAND [OPTIONS]", "       modulm --version", "", "commands:"]
    return "\n".join([*head, *commands, "", "`modulm COMMAND --help` describes a command."])


def _trace() -> None:
    from modulm.log import logger

    logger("cli").debug("Where the error comes from:", exc_info=True)
