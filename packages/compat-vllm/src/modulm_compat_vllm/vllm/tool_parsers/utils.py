"""Strings and unfinished JSON, as tool parsers compare them from one piece to the next."""

import json
import os
import re
from importlib import import_module
from json import JSONDecodeError, JSONDecoder
from typing import Any


def find_common_prefix(s1: str, s2: str) -> str:
    """Return what both begin with."""
    return os.path.commonprefix([s1, s2])


def find_common_suffix(s1: str, s2: str) -> str:
    """Return what both end with, as far as no letter or digit is in it: only closing marks are sure to be the end."""
    suffix = os.path.commonprefix([s1[::-1], s2[::-1]])
    return re.split(r"[^\W_]", suffix, maxsplit=1)[0][::-1]


def extract_intermediate_diff(curr: str, old: str) -> str:
    """Return what `curr` has between the beginning and the closing marks that it shares with `old`, a shorter state."""
    suffix = find_common_suffix(curr, old)
    old = old.removesuffix(suffix)
    prefix = find_common_prefix(curr, old)
    return curr[len(prefix) :].removesuffix(suffix)


def find_all_indices(string: str, substring: str) -> list[int]:
    """Return where the substring begins, overlapping ones too."""
    return [match.start() for match in re.finditer(f"(?={re.escape(substring)})", string)]


def is_complete_json(input_str: str) -> bool:
    """Whether the string is a JSON text."""
    try:
        json.loads(input_str)
    except JSONDecodeError:
        return False
    return True


def consume_space(i: int, s: str) -> int:
    """Return the first place from `i` on that is no white space."""
    return len(s) - len(s[i:].lstrip()) if i < len(s) else i


def partial_json_loads(input_str: str, flags: Any) -> tuple[Any, int]:
    """Return the value of a JSON text that may break off, and how much of the string it took.

    Args:
        flags: What may be unfinished, as the library `partial_json_parser` counts it; a parser that has flags has it.
    """
    partial_json_parser = import_module("partial_json_parser")  # the caller has it: its flags are of there
    try:
        return partial_json_parser.loads(input_str, flags), len(input_str)
    except JSONDecodeError as error:
        if "Extra data" not in error.msg:
            raise
        return JSONDecoder().raw_decode(input_str)
