"""Standard streams and arguments as UTF-8, whatever the locale says: models speak nothing else.

Knows no command.
"""

import os
import sys
from argparse import ArgumentTypeError
from io import TextIOWrapper

from modulm.errors import RequestError


def use_utf8() -> None:
    """Read stdin strictly, and write stdout so that no text can stop it."""
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def keep_stdout() -> None:
    """Let only `sys.stdout` lead to a pipe or file: what native code and child processes write goes where logs go.

    A terminal shows both anyway, and stays as it is.
    """
    out = sys.__stdout__
    if sys.stderr is None or out is None or out is not sys.stdout:  # closed, or somebody else's
        return
    if out.fileno() == 1 and not out.isatty():
        out.flush()
        sys.stdout = open(os.dup(1), "w", encoding="utf-8", errors="replace")  # noqa: SIM115  (until the end)
        os.dup2(2, 1)


def utf8(argument: str) -> str:
    """Return an argument read as UTF-8 (for argparse): a locale such as C leaves bytes as halves of surrogate pairs."""
    try:
        return os.fsencode(argument).decode()
    except UnicodeError as error:
        raise ArgumentTypeError(f"{argument!r:.80} is refused: it is not UTF-8 ({error}). Write it in UTF-8") from error


def read_stdin() -> str:
    """Return all of standard input. Raises `RequestError` where it is no text."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise not_utf8(error) from error


def not_utf8(error: UnicodeDecodeError) -> RequestError:
    """Return what to say of standard input that is no text."""
    return RequestError(
        f"Standard input is refused: it is not UTF-8 text ({error.reason}: byte {error.object[error.start]:#04x}). "
        "Convert it, as with `iconv -t UTF-8`.",
        parameter="prompt",
    )
