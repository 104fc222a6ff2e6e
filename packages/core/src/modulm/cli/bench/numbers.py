"""Numbers as options of `modulm bench`: each with what it must be. Knows no mode."""

import argparse
import math


def count(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is refused: it must be a whole number of at least 1")
    return int(text)


def count_or_none(text: str) -> int:
    """Read a whole number of at least 0."""
    return 0 if text == "0" else count(text)


def positive(text: str) -> float:
    """Read a number over 0; "inf" is one."""
    number = _number(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is refused: it must be over 0")
    return number


def share(text: str) -> float:
    """Read a number from 0 to below 1."""
    number = _number(text)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is refused: it must be at least 0 and below 1")
    return number


def percentiles(text: str) -> list[float]:
    """Read numbers from 0 to 100, with commas between."""
    found = [_number(part) for part in text.split(",")]
    if not all(0 <= each <= 100 for each in found):
        raise argparse.ArgumentTypeError(f"{text!r} is refused: percentiles go from 0 to 100, with commas between")
    return found


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise argparse.ArgumentTypeError(f"{text!r} is refused: it is no number")
    return number
