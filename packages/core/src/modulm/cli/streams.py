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
